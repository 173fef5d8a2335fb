package install

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"

	"fairlead.dev/pkg/terminal"
	"fairlead.dev/services/installer/internal/cli/command"
	"fairlead.dev/services/installer/internal/install/apply"
)

// installProgress returns what tells the user how far an installation is: bars on a terminal, else plain lines.
func installProgress(env command.Env, out io.Writer) apply.Progress {
	if file, ok := env.Err.(*os.File); ok && term.IsTerminal(int(file.Fd())) && env.Getenv("TERM") != "dumb" {
		return &progressBars{w: file, width: func() int {
			width, _, err := term.GetSize(int(file.Fd()))
			if err != nil {
				return 0
			}
			return width
		}}
	}
	return &progressLines{w: out}
}

// progressLines prints a line for each component that is done, and one when something is waited for.
type progressLines struct {
	w    io.Writer
	last string
}

// Step implements apply.Progress.
func (p *progressLines) Step(component string, _, _ int, now string) {
	line := component + ": " + now
	if !strings.Contains(now, ": ") || line == p.last {
		return // only what is waited for has a reason
	}
	p.last = line
	fmt.Fprintln(p.w, line)
}

// Done implements apply.Progress.
func (p *progressLines) Done(component, summary string) {
	fmt.Fprintf(p.w, "%s: %s\n", component, summary)
}

// progressBars redraws the bar of the component that is being installed.
type progressBars struct {
	w     io.Writer
	width func() int
}

// barLength is the length of a bar, in characters.
const barLength = 20

// Step implements apply.Progress.
func (p *progressBars) Step(component string, done, total int, now string) {
	filled := barLength
	if total > 0 {
		filled = barLength * done / total
	}
	line := fmt.Sprintf("  %s%s %d/%d %s: %s", strings.Repeat("█", filled), strings.Repeat("░", barLength-filled), done, total, component, now)
	p.draw(terminal.Text(line))
}

func (p *progressBars) draw(line string) {
	if width := p.width(); width > 1 && utf8.RuneCountInString(line) >= width {
		line = string([]rune(line)[:width-2]) + "…"
	}
	fmt.Fprint(p.w, "\r\x1b[K"+line)
}

// Done implements apply.Progress.
func (p *progressBars) Done(component, summary string) {
	fmt.Fprintf(p.w, "\r\x1b[K✔ %s: %s\n", terminal.Text(component), summary)
}
