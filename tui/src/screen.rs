//! The terminal as a full screen: enters the alternate screen, draws frames, reads input, and always gives
//! the terminal back.
//!
//! [`restore`] gives the terminal back from anywhere: a panic hook and a signal handler call it before they
//! print. After that, [`Screen::draw`] draws nothing, so no frame can follow the message. One thread reads
//! the input. A caller that lends the terminal to another program, such as an editor, holds
//! [`Screen::suspend`] meanwhile, and the thread reads nothing.
//!
//! The sequences are those of xterm: alternate screen (1049), bracketed paste (2004), mouse reports (1000,
//! 1002, 1006) and synchronized output (2026). OSC 52 copies text. A terminal ignores those that it does not
//! know.

use std::io::{self, Stdout, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{
    self, DisableBracketedPaste, DisableMouseCapture, EnableBracketedPaste, EnableMouseCapture, Event,
    KeyEvent, KeyEventKind, MouseEvent,
};
use ratatui::crossterm::terminal::{
    BeginSynchronizedUpdate, EndSynchronizedUpdate, EnterAlternateScreen, LeaveAlternateScreen,
    disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute, queue};
use ratatui::{Frame, Terminal};

/// The time after which the input thread looks whether it has to pause.
const PATIENCE: Duration = Duration::from_millis(50);

/// The longest text that OSC 52 is asked to copy, in bytes. Terminals limit it, xterm to about 75 kB of
/// base64.
const MAX_COPY: usize = 50_000;

/// Whether the terminal is in full-screen mode. Whoever writes to the terminal holds the lock.
static ACTIVE: Mutex<bool> = Mutex::new(false);

fn active() -> MutexGuard<'static, bool> {
    ACTIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the terminal back if a screen is in use: leaves the alternate screen, raw mode and all reporting
/// modes. Harmless at any time and from any thread.
pub fn restore() {
    // A panic inside of a frame comes here with the lock held by its own thread. Then the screen gives the
    // terminal back when it is dropped.
    leave_if(if thread::panicking() { try_active() } else { Some(active()) });
}

/// Like [`restore`], for a thread that may hold the lock of a frame: then the terminal stays as it is.
pub fn restore_without_waiting() {
    leave_if(try_active());
}

fn leave_if(active: Option<MutexGuard<'_, bool>>) {
    if active.is_some_and(|mut active| std::mem::take(&mut *active)) {
        // Nothing is left to do about a terminal that is gone.
        let _ = leave(&mut io::stdout());
    }
}

/// Whether a screen is in use.
pub fn is_active() -> bool {
    try_active().is_none_or(|active| *active)
}

/// The lock, unless it stays held for longer than a frame of another thread takes.
fn try_active() -> Option<MutexGuard<'static, bool>> {
    for _ in 0..20 {
        match ACTIVE.try_lock() {
            Ok(active) => return Some(active),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
        }
    }
    None
}

/// What a screen asks of the terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether the terminal reports the mouse. It then no longer selects text by itself.
    pub mouse: bool,
}

/// What the user did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A key was pressed or repeated.
    Key(KeyEvent),
    /// Text was pasted.
    Paste(String),
    /// The mouse was used.
    Mouse(MouseEvent),
    /// The terminal has another size.
    Resize,
    /// The terminal is gone; nothing more will be read.
    Closed,
}

/// The terminal in full-screen mode. Dropping it gives the terminal back.
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    options: Options,
    /// Held by the input thread while it reads.
    reading: Arc<Mutex<()>>,
    paused: Arc<AtomicBool>,
}

impl Screen {
    /// Takes the terminal.
    pub fn enter(options: Options) -> io::Result<Self> {
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        let screen = Self { terminal, options, reading: Arc::default(), paused: Arc::default() };
        enter(options)?;
        Ok(screen)
    }

    /// Draws one frame. After [`restore`] it draws nothing.
    pub fn draw(&mut self, render: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        let active = active();
        if !*active {
            return Ok(());
        }
        queue!(io::stdout(), BeginSynchronizedUpdate)?;
        self.terminal.draw(render)?;
        execute!(io::stdout(), EndSynchronizedUpdate)
    }

    /// Draws every cell again with the next frame.
    pub fn redraw(&mut self) -> io::Result<()> {
        self.terminal.clear()
    }

    /// Lets the terminal report the mouse, or select text by itself.
    pub fn set_mouse(&mut self, on: bool) -> io::Result<()> {
        self.options.mouse = on;
        let active = active();
        match (*active, on) {
            (false, _) => Ok(()),
            (true, true) => execute!(io::stdout(), EnableMouseCapture),
            (true, false) => execute!(io::stdout(), DisableMouseCapture),
        }
    }

    /// Asks the terminal to put `text` into the clipboard (OSC 52), which also works over ssh. Terminals do
    /// not answer, so nobody knows whether it did. Returns `false` for a text that is too long to be asked
    /// for.
    pub fn copy(&mut self, text: &str) -> io::Result<bool> {
        if text.len() > MAX_COPY {
            return Ok(false);
        }
        let active = active();
        if *active {
            let mut stdout = io::stdout();
            write!(stdout, "\u{1b}]52;c;{}\u{7}", STANDARD.encode(text))?;
            stdout.flush()?;
        }
        Ok(true)
    }

    /// Starts the thread that reads the input. One call per screen.
    pub fn read_input(&self) -> Receiver<Input> {
        let (sender, receiver) = mpsc::channel();
        let (reading, paused) = (Arc::clone(&self.reading), Arc::clone(&self.paused));
        let read = move || {
            loop {
                if paused.load(Ordering::SeqCst) {
                    thread::sleep(PATIENCE);
                    continue;
                }
                let next = {
                    let _reading = reading.lock().unwrap_or_else(PoisonError::into_inner);
                    next_input()
                };
                let (input, is_last) = match next {
                    Ok(None) => continue,
                    Ok(Some(input)) => (input, false),
                    Err(_) => (Input::Closed, true),
                };
                if sender.send(input).is_err() || is_last {
                    return;
                }
            }
        };
        // Without a thread there is no input, which the receiver sees as the end.
        let _ = thread::Builder::new().name("input".to_owned()).spawn(read);
        receiver
    }

    /// Lends the terminal to another program while `work` runs, and takes it again.
    pub fn suspend<T>(&mut self, work: impl FnOnce() -> T) -> io::Result<T> {
        self.paused.store(true, Ordering::SeqCst);
        let reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        restore();
        let outcome = work();
        enter(self.options)?;
        self.terminal.clear()?;
        drop(reading);
        self.paused.store(false, Ordering::SeqCst);
        Ok(outcome)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.paused.store(true, Ordering::SeqCst);
        restore();
    }
}

fn enter(options: Options) -> io::Result<()> {
    let mut active = active();
    enable_raw_mode()?;
    // Set first: what was switched on before an error is switched off again.
    *active = true;
    let mut stdout = io::stdout();
    execute!(stdout, EnterAlternateScreen, EnableBracketedPaste)?;
    if options.mouse { execute!(stdout, EnableMouseCapture) } else { Ok(()) }
}

fn leave(stdout: &mut Stdout) -> io::Result<()> {
    // Each step is tried, whatever became of the one before it.
    let modes = execute!(stdout, EndSynchronizedUpdate, DisableMouseCapture, DisableBracketedPaste);
    let screen = execute!(stdout, LeaveAlternateScreen, cursor::Show);
    let raw = disable_raw_mode();
    modes.and(screen).and(raw)
}

/// Waits a moment for the next input. `None` stands for no input, and for input that no screen uses.
fn next_input() -> io::Result<Option<Input>> {
    if !event::poll(PATIENCE)? {
        return Ok(None);
    }
    Ok(match event::read()? {
        Event::Key(key) if key.kind != KeyEventKind::Release => Some(Input::Key(key)),
        Event::Paste(text) => Some(Input::Paste(text)),
        Event::Mouse(mouse) => Some(Input::Mouse(mouse)),
        Event::Resize(..) => Some(Input::Resize),
        _ => None,
    })
}
