//! The documents that ship with the checker; `documents/README.md` says where each comes from.

/// One document and what the checker must say of it.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The file name.
    pub name: &'static str,
    /// The whole file.
    pub bytes: &'static [u8],
    /// Whether the checker accepts it (200) or refuses it (400, 415 or 422).
    pub good: bool,
}

macro_rules! sample {
    (good $name:literal) => {
        Sample { name: $name, bytes: include_bytes!(concat!("../documents/good/", $name)), good: true }
    };
    (bad $name:literal) => {
        Sample { name: $name, bytes: include_bytes!(concat!("../documents/bad/", $name)), good: false }
    };
}

const SAMPLES: &[Sample] = &[
    sample!(good "qpdf-minimal.pdf"),
    sample!(good "pypdf-crazyones.pdf"),
    sample!(good "pillow-hopper.jpg"),
    sample!(bad "qpdf-bad-data.pdf"),
    sample!(bad "qpdf-content-stream-errors.pdf"),
    sample!(bad "qpdf-issue-100.pdf"),
    sample!(bad "pypdf-encrypted-file.pdf"),
    sample!(bad "pillow-truncated_image.png"),
    sample!(bad "pillow-truncated_jpeg.jpg"),
    sample!(bad "poi-invalid.xlsx"),
];

/// Every document that ships with the checker, the good ones first.
#[must_use]
pub fn samples() -> &'static [Sample] {
    SAMPLES
}
