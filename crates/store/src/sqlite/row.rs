//! How rows are written and read, whatever the table.
//!
//! Every row ends in a BLAKE3 checksum over its other columns, taken when it is written and compared whenever it is read.

use bytes::Bytes;
use nevertwice_domain::clock::Millis;
use nevertwice_domain::tenant::UpstreamName;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Row, params_from_iter};

/// A row that is not what this program wrote.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Writes one row: `values` are all columns but the checksum, which is the last one.
pub(crate) fn insert(connection: &Connection, table: &str, values: &[ValueRef<'_>]) -> rusqlite::Result<()> {
    let checksum = seal(table, values.iter().copied());
    let marks = vec!["?"; values.len() + 1].join(", ");
    let all = values.iter().copied().chain([ValueRef::Blob(&checksum)]).map(ToSqlOutput::Borrowed);
    connection
        .prepare_cached(&format!("INSERT OR REPLACE INTO {table} VALUES ({marks})"))?
        .execute(params_from_iter(all))?;
    Ok(())
}

/// The checksum of a row. Every value is hashed with its type and length, so that no two rows are hashed as the same bytes.
fn seal<'v>(table: &str, values: impl Iterator<Item = ValueRef<'v>>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"nevertwice row 1\0").update(table.as_bytes()).update(b"\0");
    for value in values {
        match value {
            ValueRef::Null => hasher.update(b"n"),
            ValueRef::Integer(i) => hasher.update(b"i").update(&i.to_le_bytes()),
            ValueRef::Real(r) => hasher.update(b"r").update(&r.to_le_bytes()),
            ValueRef::Text(t) => hasher.update(b"t").update(&(t.len() as u64).to_le_bytes()).update(t),
            ValueRef::Blob(b) => hasher.update(b"b").update(&(b.len() as u64).to_le_bytes()).update(b),
        };
    }
    hasher.finalize().into()
}

/// The columns of one row, read in order, once its checksum was found right.
pub(crate) struct Columns<'r> {
    values: std::vec::IntoIter<ValueRef<'r>>,
}

impl<'r> Columns<'r> {
    /// The columns of `row`, which are `count` with the checksum.
    pub(crate) fn verified(
        table: &str,
        row: &'r Row<'_>,
        count: usize,
    ) -> rusqlite::Result<Result<Self, Malformed>> {
        let mut values = (0..count).map(|i| row.get_ref(i)).collect::<rusqlite::Result<Vec<_>>>()?;
        let right = match values.pop() {
            Some(ValueRef::Blob(checksum)) => *checksum == seal(table, values.iter().copied()),
            _ => false,
        };
        Ok(if right { Ok(Self { values: values.into_iter() }) } else { Err(Malformed) })
    }

    /// The next one, as it is.
    pub(crate) fn next(&mut self) -> Result<ValueRef<'r>, Malformed> {
        self.values.next().ok_or(Malformed)
    }

    /// A number.
    pub(crate) fn integer(&mut self) -> Result<i64, Malformed> {
        self.next()?.as_i64().map_err(|_| Malformed)
    }

    /// A count, stored in the same 64 bits.
    pub(crate) fn unsigned(&mut self) -> Result<u64, Malformed> {
        Ok(self.integer()?.cast_unsigned())
    }

    /// A number of a smaller type.
    pub(crate) fn small<T: TryFrom<i64>>(&mut self) -> Result<T, Malformed> {
        T::try_from(self.integer()?).map_err(|_| Malformed)
    }

    /// A time, or none.
    pub(crate) fn optional_time(&mut self) -> Result<Option<Millis>, Malformed> {
        Ok(self.next()?.as_i64_or_null().map_err(|_| Malformed)?.map(Millis))
    }

    /// A time.
    pub(crate) fn time(&mut self) -> Result<Millis, Malformed> {
        Ok(Millis(self.integer()?))
    }

    /// A text.
    pub(crate) fn text(&mut self) -> Result<&'r str, Malformed> {
        self.next()?.as_str().map_err(|_| Malformed)
    }

    /// Bytes.
    pub(crate) fn bytes(&mut self) -> Result<Bytes, Malformed> {
        self.next()?.as_blob().map(Bytes::copy_from_slice).map_err(|_| Malformed)
    }

    /// Bytes, or none.
    pub(crate) fn optional_bytes(&mut self) -> Result<Option<Bytes>, Malformed> {
        Ok(self.next()?.as_blob_or_null().map_err(|_| Malformed)?.map(Bytes::copy_from_slice))
    }

    /// The 32 bytes of a digest.
    pub(crate) fn digest(&mut self) -> Result<[u8; 32], Malformed> {
        self.next()?.as_blob().ok().and_then(|b| b.try_into().ok()).ok_or(Malformed)
    }

    /// An upstream's name.
    pub(crate) fn upstream(&mut self) -> Result<UpstreamName, Malformed> {
        UpstreamName::new(self.text()?).map_err(|_| Malformed)
    }
}

/// A text as a value of a row.
pub(crate) fn text(text: &str) -> ValueRef<'_> {
    ValueRef::Text(text.as_bytes())
}

/// Bytes or none as a value of a row.
pub(crate) fn optional(bytes: Option<&Bytes>) -> ValueRef<'_> {
    bytes.map_or(ValueRef::Null, |b| ValueRef::Blob(b))
}

/// A count as a value of a row.
pub(crate) fn unsigned<'v>(value: u64) -> ValueRef<'v> {
    ValueRef::Integer(value.cast_signed())
}
