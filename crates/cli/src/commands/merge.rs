//! `merge` and `export`: adapters for other programs.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use indicatif::ProgressBar;
use loraloom_config::DtypeChoice;
use loraloom_model::{
    Checkpoint, LlamaConfig, MergePart, PeftAdapter, TensorDtype, copy_adapter, merge,
    write_gguf_lora,
};
use loraloom_scheduler::size;
use loraloom_trainer::{load_adapter, quoted};

use super::source::say_another_base;
use crate::{
    arguments::{ExportArguments, ExportFormat, MergeArguments, SourceArguments},
    exit::Exit,
    failure::Failure,
    printer::{Printer, style},
    run_directory,
};

/// Interval of progress lines without a terminal.
const SAY_EVERY: Duration = Duration::from_secs(5);

pub(super) fn run(arguments: &MergeArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let model = arguments.source.model()?;
    let config = LlamaConfig::from_directory(&model)?;
    warn_of_quantization(&arguments.source, printer)?;
    let mut parts = Vec::with_capacity(arguments.adapters.len());
    let mut seen = BTreeSet::new();
    for named in &arguments.adapters {
        if !seen.insert(&named.adapter) {
            let message = format!("the adapter `{}` is named twice", named.adapter);
            let hint = "use one weight, such as `NAME*2`";
            return Err(Failure::usage(message).hint(hint).into());
        }
        let directory = arguments.source.adapter(&named.adapter)?;
        parts.push(part(directory, named.weight, &model, &config)?);
    }
    let dtype = match arguments.dtype {
        DtypeChoice::Auto => None,
        DtypeChoice::Float32 => Some(TensorDtype::Float32),
        DtypeChoice::Bfloat16 => Some(TensorDtype::Bfloat16),
        DtypeChoice::Float16 => Some(TensorDtype::Float16),
    };
    fold(&model, &config, &parts, dtype, &arguments.out, printer)?;
    Ok(Exit::Success)
}

pub(super) fn export(arguments: &ExportArguments, printer: &Printer) -> anyhow::Result<Exit> {
    let model = arguments.source.model()?;
    let directory = arguments.source.adapter(&arguments.adapter)?;
    let out = arguments.out.as_path();
    let config = LlamaConfig::from_directory(&model)?;
    let part = part(directory, 1.0, &model, &config)?;
    if arguments.format == ExportFormat::Merged {
        warn_of_quantization(&arguments.source, printer)?;
        fold(&model, &config, &[part], None, out, printer)?;
        return Ok(Exit::Success);
    }
    warn_of_another_base(&model, &config, &[&part], printer)?;
    let shown = out.display();
    if arguments.format == ExportFormat::GgufLora {
        let bytes = write_gguf_lora(&part.adapter, &config, &arguments.adapter, out)?;
        printer.note(&format!("wrote {shown}: {}", size(bytes)));
        printer.note("next:");
        printer.note(&format!(
            "  llama-cli --model BASE.gguf --lora {}",
            quoted(out)
        ));
    } else {
        copy_adapter(&part.directory, out)?;
        printer.note(&format!("wrote {shown}"));
        printer.note("next:");
        printer.note(&format!("  loraloom verify {}", quoted(out)));
        printer.note(&format!(
            "  PeftModel.from_pretrained(base, \"{shown}\")  # in Python"
        ));
    }
    Ok(Exit::Success)
}

fn part(
    directory: PathBuf,
    weight: f64,
    model: &Path,
    config: &LlamaConfig,
) -> anyhow::Result<MergePart> {
    PeftAdapter::check_copies(&directory, model)?;
    Ok(MergePart {
        adapter: load_adapter(&directory, Some(config))?,
        directory,
        weight,
    })
}

/// Merges, and prints the written files.
fn fold(
    model: &Path,
    config: &LlamaConfig,
    parts: &[MergePart],
    dtype: Option<TensorDtype>,
    out: &Path,
    printer: &Printer,
) -> anyhow::Result<()> {
    warn_of_another_base(model, config, &parts.iter().collect::<Vec<_>>(), printer)?;
    let mut progress = MergeProgress::new(printer);
    let merged = merge(model, parts, dtype, out, &mut |done, total| {
        progress.tell(done, total);
    });
    progress.finish();
    let merged = merged?;

    let shown = out.display();
    let bytes = merged.files.iter().map(|(_, bytes)| bytes).sum();
    let (files, total) = (merged.files.len(), size(bytes));
    let dtype = merged.dtype.map(|dtype| format!(", weights in {dtype}"));
    printer.note(&format!(
        "wrote {shown}: {files} files, {total}{}",
        dtype.unwrap_or_default()
    ));
    for (name, bytes) in &merged.files {
        printer.note(&format!("  {name}  {}", size(*bytes)));
    }
    printer.note("next:");
    let quoted = quoted(out);
    printer.note(&format!("  loraloom verify {quoted}"));
    printer.note(&format!("  loraloom generate --model {quoted} PROMPT"));
    Ok(())
}

/// Warns if the adapters of a run were trained over weights in NF4.
fn warn_of_quantization(source: &SourceArguments, printer: &Printer) -> anyhow::Result<()> {
    if let Some(run) = &source.run
        && run_directory::config(run)?.quantization.is_some()
    {
        printer.warning(
            "the run trained over weights in NF4, and its adapters are merged into the model's own: compare the \
             results with `loraloom eval`",
        );
    }
    Ok(())
}

fn warn_of_another_base(
    model: &Path,
    config: &LlamaConfig,
    parts: &[&MergePart],
    printer: &Printer,
) -> anyhow::Result<()> {
    let checkpoint = Checkpoint::open(model)?;
    let digest = checkpoint.digest(config)?;
    for part in parts {
        let base = part.adapter.base.as_ref();
        if base.is_some_and(|base| *base != digest) {
            say_another_base(&part.directory, model, printer);
        }
    }
    Ok(())
}

/// Progress of a merge: a bar, or a line at intervals.
struct MergeProgress<'a> {
    printer: &'a Printer,
    bar: Option<ProgressBar>,
    said: Instant,
}

impl<'a> MergeProgress<'a> {
    fn new(printer: &'a Printer) -> Self {
        let bar = printer.bars().map(|bars| {
            let bar = bars.add(ProgressBar::new(0));
            bar.set_style(style("merging {bar:30} {bytes} of {total_bytes}"));
            bar
        });
        Self {
            printer,
            bar,
            said: Instant::now(),
        }
    }

    fn tell(&mut self, done: u64, total: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(done);
        } else if self.said.elapsed() >= SAY_EVERY {
            self.said = Instant::now();
            let (done, total) = (size(done), size(total));
            self.printer.note(&format!("merging  {done} of {total}"));
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
