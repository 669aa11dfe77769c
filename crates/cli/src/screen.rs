//! The terminal that bars are drawn on.

use std::io;

use console::Term;
use indicatif::{ProgressDrawTarget, TermLike};

/// Most redraws per second, indicatif's default.
const HERTZ: u8 = 20;

/// stderr, with the cursor at the beginning of the last line between two frames. At its end, the `^C` that a terminal
/// echoes would start another line, and the first line of the bars would remain.
#[derive(Debug)]
struct Screen(Term);

/// The terminal that bars are drawn on.
pub(crate) fn target() -> ProgressDrawTarget {
    ProgressDrawTarget::term_like_with_hz(Box::new(Screen(Term::buffered_stderr())), HERTZ)
}

/// Clears a frame of `lines` lines that filled `columns` columns each, after the terminal became narrower: it has
/// wrapped the lines again, and a bar only knows how many it has written.
pub(crate) fn wipe(lines: usize, columns: usize) {
    let terminal = Term::stderr();
    let now = usize::from(terminal.size().1).max(1);
    let above = lines.saturating_sub(1) * columns / now;
    // A terminal that cannot be written to has nothing to clear.
    let _ = terminal.move_cursor_up(above);
    let _ = terminal.write_str("\r");
    let _ = terminal.clear_to_end_of_screen();
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        self.0.size().1
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, lines: usize) -> io::Result<()> {
        self.0.move_cursor_up(lines)
    }

    fn move_cursor_down(&self, lines: usize) -> io::Result<()> {
        self.0.move_cursor_down(lines)
    }

    fn move_cursor_right(&self, columns: usize) -> io::Result<()> {
        self.0.move_cursor_right(columns)
    }

    fn move_cursor_left(&self, columns: usize) -> io::Result<()> {
        self.0.move_cursor_left(columns)
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.0.write_line(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.0.write_str(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.0.clear_line()
    }

    fn flush(&self) -> io::Result<()> {
        self.0.write_str("\r")?;
        self.0.flush()
    }
}
