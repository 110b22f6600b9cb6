//! `schwann completions` and `schwann man`: the command line described for shells and for `man`.

use crate::{Outcome, command, out};
use anyhow::{Context, Result};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann completions bash > ~/.local/share/bash-completion/completions/schwann
  schwann completions zsh > ~/.zfunc/_schwann
  schwann completions fish > ~/.config/fish/completions/schwann.fish")]
pub(crate) struct Completions {
    /// The shell.
    shell: clap_complete::Shell,
}

#[derive(clap::Args)]
#[command(after_help = "Examples:
  schwann man ~/.local/share/man/man1
  schwann man pages && man pages/schwann-profile.1")]
pub(crate) struct Man {
    /// The folder, which is made where it is not there.
    dir: PathBuf,
}

pub(crate) fn completions(args: &Completions) -> Result<Outcome> {
    let mut text = vec![];
    clap_complete::generate(args.shell, &mut command(), "schwann", &mut text);
    out::print(&String::from_utf8_lossy(&text))?;
    Ok(Outcome::Done)
}

pub(crate) fn man(args: &Man) -> Result<Outcome> {
    out::not_stdout(&args.dir, "DIR", "a folder, for there is a page for each command")?;
    let cannot = || format!("cannot write man pages to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(cannot)?;
    let mut command = crate::Cli::command_for_pages();
    command.build();
    let mut written = 0;
    pages(&command, "schwann", &mut |name, command| {
        let mut page = vec![];
        clap_mangen::Man::new(command).title(name.to_uppercase()).render(&mut page)?;
        schwann::io::write_bytes(args.dir.join(format!("{name}.1")), &page).map_err(std::io::Error::other)?;
        written += 1;
        Ok(())
    })
    .with_context(cannot)?;
    out::note(&format!("wrote {written} pages to {}", args.dir.display()));
    Ok(Outcome::Done)
}

/// Every command that is shown, with its page's name: `schwann-gate-experiment`.
fn pages(
    command: &clap::Command,
    name: &str,
    write: &mut dyn FnMut(&str, clap::Command) -> std::io::Result<()>,
) -> std::io::Result<()> {
    write(name, command.clone().name(name.to_owned()))?;
    let shown = |sub: &&clap::Command| !sub.is_hide_set() && sub.get_name() != "help";
    command.get_subcommands().filter(shown).try_for_each(|sub| pages(sub, &format!("{name}-{}", sub.get_name()), write))
}
