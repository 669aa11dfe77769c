use std::{
    fs::{self, File},
    ops::Deref,
    path::{Path, PathBuf},
};

use memmap2::Mmap;
use safetensors::{
    SafeTensors,
    tensor::{Metadata, TensorInfo},
};

use super::{dtype::TensorDtype, tensor::HostTensor};
use crate::{
    error::ModelError,
    files::{reading, refuse_lfs_pointer},
};

/// Bytes of the header's length at the start of the file.
const LENGTH_BYTES: usize = 8;

/// One safetensors file with its header checked.
#[derive(Debug)]
pub(crate) struct Shard {
    path: PathBuf,
    contents: Contents,
    data_start: usize,
    metadata: Metadata,
}

#[derive(Debug)]
enum Contents {
    Mapped(Mmap),
    Read(Vec<u8>),
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Read(bytes) => bytes,
        }
    }
}

impl Shard {
    /// Maps `path` and checks its header: offsets ascend without gaps or overlaps, agree with the
    /// shapes, and end where the file ends.
    pub(crate) fn open(path: &Path) -> Result<Self, ModelError> {
        let file = reading(path, File::open(path))?;
        if reading(path, file.metadata())?.len() == 0 {
            // Some platforms cannot map an empty file.
            return Self::of(path, Contents::Read(Vec::new()));
        }
        Self::of(path, Contents::Mapped(reading(path, map_file(&file))?))
    }

    /// As [`open`](Self::open), with a copy of the file. Whoever truncates a mapped file ends the process that reads it,
    /// and adapters are written while a server reads them.
    pub(crate) fn read(path: &Path) -> Result<Self, ModelError> {
        Self::of(path, Contents::Read(reading(path, fs::read(path))?))
    }

    fn of(path: &Path, contents: Contents) -> Result<Self, ModelError> {
        refuse_lfs_pointer(path, &contents)?;
        let read = SafeTensors::read_metadata(&contents);
        let (header, metadata) = read.map_err(|error| ModelError::Safetensors {
            path: path.into(),
            error,
        })?;
        Ok(Self {
            path: path.into(),
            contents,
            data_start: LENGTH_BYTES + header,
            metadata,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the tensors, in the order of the file.
    pub(crate) fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// The header's metadata under a key.
    pub(crate) fn note(&self, key: &str) -> Option<&str> {
        let notes = self.metadata.metadata().as_ref()?;
        notes.get(key).map(String::as_str)
    }

    /// Bytes of the tensor that `info` describes.
    pub(crate) fn bytes(&self, info: &TensorInfo) -> &[u8] {
        let (start, end) = info.data_offsets;
        &self.contents[self.data_start..][start..end]
    }

    /// Shape and type of a tensor, if the file has it.
    pub(crate) fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }

    /// The tensor that `info` describes.
    pub(crate) fn tensor<'a>(
        &'a self,
        name: &str,
        info: &'a TensorInfo,
    ) -> Result<HostTensor<'a>, ModelError> {
        let dtype = TensorDtype::from_safetensors(info.dtype);
        let dtype = dtype.ok_or_else(|| ModelError::TensorType {
            tensor: name.to_owned(),
            path: self.path.clone(),
            found: info.dtype.to_string(),
        })?;
        Ok(HostTensor {
            shape: &info.shape,
            dtype,
            bytes: self.bytes(info),
        })
    }
}

#[expect(
    unsafe_code,
    reason = "mapping a file is unsafe because others may change it meanwhile"
)]
fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read-only and its bytes are only read as numbers, for which every bit pattern is valid. Like
    // every reader of safetensors, this assumes that no process truncates the file; the alternative is a copy of the
    // weights.
    unsafe { Mmap::map(file) }
}
