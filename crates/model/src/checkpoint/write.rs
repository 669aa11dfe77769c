use std::{
    borrow::Cow,
    collections::BTreeMap,
    fs::File,
    io::{BufWriter, Write},
    path::Path,
};

use safetensors::{Dtype, tensor::TensorInfo};
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::error::{ModelError, on};

/// The header ends where the data may begin, at a multiple of this.
const ALIGNMENT: usize = 8;
/// Size of the write buffer.
const BUFFER: usize = 1 << 20;

/// A tensor that is to be written.
#[derive(Debug)]
pub(crate) struct NewTensor<T> {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    /// Source of its data.
    pub(crate) source: T,
}

impl<T> NewTensor<T> {
    pub(crate) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bitsize() / 8
    }
}

/// The header's JSON.
struct Header<'a> {
    metadata: &'a BTreeMap<String, String>,
    tensors: Vec<(&'a str, TensorInfo)>,
}

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut header = serializer.serialize_map(None)?;
        header.serialize_entry("__metadata__", self.metadata)?;
        for (name, info) in &self.tensors {
            header.serialize_entry(name, info)?;
        }
        header.end()
    }
}

/// Writes a new safetensors file; it is on the disk when this returns. `data` makes the data of one tensor at a time,
/// and only that is in memory.
///
/// The crate `safetensors` writes metadata in the order of a hash map, which differs between processes, and its
/// interface has no errors of `data`.
///
/// # Errors
/// If the file exists or cannot be written, or `data` fails.
pub(crate) fn write_safetensors<T>(
    path: &Path,
    mut tensors: Vec<NewTensor<T>>,
    metadata: &BTreeMap<String, String>,
    mut data: impl for<'a> FnMut(&'a NewTensor<T>) -> Result<Cow<'a, [u8]>, ModelError>,
) -> Result<(), ModelError> {
    // The order of the crate `safetensors`: every tensor is aligned to its type.
    tensors.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    let mut end = 0;
    let infos = tensors.iter().map(|tensor| {
        let start = end;
        end += tensor.bytes();
        let info = TensorInfo {
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            data_offsets: (start, end),
        };
        (tensor.name.as_str(), info)
    });
    let header = Header {
        metadata,
        tensors: infos.collect(),
    };
    let mut header = serde_json::to_vec(&header).map_err(ModelError::Json)?;
    header.resize(header.len().next_multiple_of(ALIGNMENT), b' ');

    let file = on(path, File::create_new(path))?;
    let mut writer = BufWriter::with_capacity(BUFFER, file);
    on(path, writer.write_all(&(header.len() as u64).to_le_bytes()))?;
    on(path, writer.write_all(&header))?;
    for tensor in &tensors {
        let bytes = data(tensor)?;
        debug_assert_eq!(bytes.len(), tensor.bytes(), "{}", tensor.name);
        on(path, writer.write_all(&bytes))?;
    }
    let file = on(path, writer.into_inner().map_err(Into::into))?;
    on(path, file.sync_all())
}
