//! Pictures: the image crate decodes every pixel of the first frame, within limits.

use std::io::Cursor;

use image::{ImageError, ImageFormat, ImageReader, Limits};

use super::Report;
use crate::refusal::Refusal;

/// The largest width and height, in pixels.
const SIDE_LIMIT: u32 = 16_384;

/// The most memory that one decode may ask for, in bytes.
const ALLOCATION_LIMIT: u64 = 256 * 1024 * 1024;

pub(super) fn inspect(document: &[u8], kind: &'static str, format: ImageFormat) -> Result<Report, Refusal> {
    if format == ImageFormat::Jpeg && !jpeg_is_whole(document) {
        return Err(Refusal::corrupt("the jpeg breaks off before its end marker"));
    }
    let mut reader = ImageReader::with_format(Cursor::new(document), format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_LIMIT);
    limits.max_image_height = Some(SIDE_LIMIT);
    limits.max_alloc = Some(ALLOCATION_LIMIT);
    reader.limits(limits);
    let picture = reader.decode().map_err(|error| refusal(kind, &error))?;
    Ok(Report::Picture { kind, width: picture.width(), height: picture.height() })
}

/// Whether an end-of-image marker follows the last scan. The decoder fills up what is missing with grey;
/// within a scan 0xff is always escaped, so a marker found there is a true one (ITU-T T.81, B.1.1.2).
fn jpeg_is_whole(document: &[u8]) -> bool {
    // Without a scan the decoder finds the fault itself.
    let Some(last_scan) = document.windows(2).rposition(|pair| pair == [0xff, 0xda]) else { return true };
    document.windows(2).skip(last_scan).any(|pair| pair == [0xff, 0xd9])
}

fn refusal(kind: &str, error: &ImageError) -> Refusal {
    match error {
        ImageError::Limits(_) => Refusal::unprocessable(format_args!("the {kind} is too large to process")),
        ImageError::Unsupported(error) => {
            Refusal::unprocessable(format_args!("the {kind} uses a feature that is not supported: {error}"))
        }
        error => Refusal::corrupt(format_args!("the {kind} does not decode: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use image::DynamicImage;

    use super::*;
    use crate::refusal::Code;

    fn encoded(format: ImageFormat) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        let written = DynamicImage::new_rgb8(40, 30).write_to(&mut bytes, format);
        assert!(written.is_ok(), "{format:?}");
        bytes.into_inner()
    }

    #[test]
    fn every_kind_decodes_whole_and_is_refused_cut() {
        let kinds = [
            ("png", ImageFormat::Png),
            ("jpeg", ImageFormat::Jpeg),
            ("gif", ImageFormat::Gif),
            ("bmp", ImageFormat::Bmp),
            ("tiff", ImageFormat::Tiff),
            ("pnm", ImageFormat::Pnm),
        ];
        for (kind, format) in kinds {
            let whole = encoded(format);
            assert_eq!(super::super::inspect(&whole), Ok(Report::Picture { kind, width: 40, height: 30 }));
            let cut = inspect(&whole[..whole.len() / 2], kind, format);
            assert_eq!(cut.map_err(|refusal| refusal.code), Err(Code::CorruptDocument), "{kind}");
        }
    }

    #[test]
    fn a_picture_beyond_the_limits_is_unprocessable() {
        let cases = [&b"P6 16385 1 255 "[..], b"P6 16384 16384 255 "];
        for head in cases {
            let verdict = inspect(head, "pnm", ImageFormat::Pnm);
            assert_eq!(verdict.map_err(|refusal| refusal.code), Err(Code::UnprocessableDocument));
        }
    }
}
