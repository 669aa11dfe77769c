//! Frames of Zstandard, decompressed one after another.

use std::{
    error::Error,
    io::{self, BufRead, ErrorKind, Read},
};

use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

/// The text of all frames of a file; checksums are compared.
pub(super) struct Frames<R> {
    source: R,
    decoder: FrameDecoder,
    is_within: bool,
}

impl<R: BufRead> Frames<R> {
    pub(super) fn new(source: R) -> Self {
        Self {
            source,
            decoder: FrameDecoder::new(),
            is_within: false,
        }
    }

    fn begin_frame(&mut self) -> io::Result<()> {
        match self.decoder.reset(&mut self.source) {
            Ok(()) => self.is_within = true,
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                length,
                ..
            })) => {
                let mut skipped = (&mut self.source).take(length.into());
                if io::copy(&mut skipped, &mut io::sink())? < u64::from(length) {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
            }
            Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::BadMagicNumber(
                _,
            ))) => return Err(io::Error::other("expected the start of a frame")),
            Err(error) => return Err(plain(error)),
        }
        Ok(())
    }

    /// Bytes of the frame; 0 at its end.
    fn read_frame(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
            self.decoder
                .decode_blocks(&mut self.source, BlockDecodingStrategy::UptoBlocks(1))
                .map_err(plain)?;
        }
        self.decoder.read(buffer)
    }

    fn end_frame(&mut self) -> io::Result<()> {
        self.is_within = false;
        match self.decoder.get_checksum_from_data() {
            Some(written) if self.decoder.get_calculated_checksum() != Some(written) => {
                Err(io::Error::other("its checksum does not match"))
            }
            _ => Ok(()),
        }
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if self.is_within {
                let read = self.read_frame(buffer)?;
                if read > 0 {
                    return Ok(read);
                }
                self.end_frame()?;
            } else if self.source.fill_buf()?.is_empty() {
                return Ok(0);
            } else {
                self.begin_frame()?;
            }
        }
    }
}

/// An error of the decoder; one of the file itself is below others.
fn plain(error: FrameDecoderError) -> io::Error {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(inner) = cause {
        if let Some(found) = inner.downcast_ref::<io::Error>() {
            return found
                .raw_os_error()
                .map_or_else(|| found.kind().into(), io::Error::from_raw_os_error);
        }
        cause = inner.source();
    }
    io::Error::other(error)
}
