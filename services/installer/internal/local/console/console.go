// Package console prints the state of a running mesh for `fairlead up`: Terminal redraws a table in place, Plain prints
// a line for each change. Package local calls Show and Line.
package console

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/lists"
	"fairlead.dev/pkg/terminal"

	"fairlead.dev/services/installer/internal/table"
)

// Row is one process.
type Row struct {
	Service string
	// PID is 0 while it does not run.
	PID      int
	Ready    bool
	Reason   string
	Restarts int
	// Revision is the one that the process has; empty if it has none.
	Revision string
	// Expires is when its certificate ends; zero if it has none.
	Expires time.Time
}

// Console prints rows and lines. Its methods are safe for concurrent use.
type Console interface {
	// Show replaces the table.
	Show([]Row)
	// Line prints a line that stays above the table.
	Line(string)
}

// Plain prints a line for each change of a process.
type Plain struct {
	w     io.Writer
	clock clock.Clock

	mu   sync.Mutex
	last map[string]Row
}

// NewPlain returns a console that prints to w.
func NewPlain(w io.Writer, c clock.Clock) *Plain {
	return &Plain{w: w, clock: c, last: map[string]Row{}}
}

// Show prints a line for each process whose readiness has changed. A process that is not among the rows is forgotten.
func (p *Plain) Show(rows []Row) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.last
	p.last = map[string]Row{}
	for _, r := range rows {
		old, known := before[r.Service]
		p.last[r.Service] = r
		switch {
		case r.Ready && (!old.Ready || old.PID != r.PID):
			p.print(fmt.Sprintf("%s is ready, pid %d", r.Service, r.PID))
		case known && r.PID == 0 && old.PID != 0:
			p.print(fmt.Sprintf("%s has ended: %s", r.Service, r.Reason))
		case old.Ready && !r.Ready:
			p.print(fmt.Sprintf("%s is not ready: %s", r.Service, r.Reason))
		}
	}
}

// Line prints a line with the time.
func (p *Plain) Line(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.print(s)
}

func (p *Plain) print(s string) {
	fmt.Fprintf(p.w, "%s  %s\n", p.clock.Now().Format(time.TimeOnly), s)
}

// Terminal redraws a table in place, with control sequences.
type Terminal struct {
	w     io.Writer
	clock clock.Clock
	// size returns the terminal's width and height.
	size func() (width, height int)

	mu    sync.Mutex
	drawn int
	rows  []Row
}

// NewTerminal returns a console that draws on w. It asks for the size before each drawing.
func NewTerminal(w io.Writer, c clock.Clock, size func() (width, height int)) *Terminal {
	return &Terminal{w: w, clock: c, size: size}
}

// Show draws the table over the previous one.
func (t *Terminal) Show(rows []Row) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rows = rows
	t.draw()
}

// Line prints a line above the table.
func (t *Terminal) Line(s string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.erase()
	fmt.Fprintln(t.w, terminal.Text(s))
	t.draw()
}

// erase moves to the first line of the table and clears to the end of the screen.
func (t *Terminal) erase() {
	if t.drawn > 0 {
		fmt.Fprintf(t.w, "\x1b[%dA", t.drawn)
	}
	fmt.Fprint(t.w, "\r\x1b[J")
	t.drawn = 0
}

func (t *Terminal) draw() {
	if len(t.rows) == 0 {
		return
	}
	width, height := t.size()
	lines := Table(t.rows, t.clock.Now()).Lines()
	if most := max(height-2, 3); len(lines) > most {
		// Rows that are not ready are shown first.
		lines = shortTable(t.rows, t.clock.Now(), most)
	}
	t.erase()
	for _, l := range lines {
		fmt.Fprintln(t.w, truncate(terminal.Text(l), width))
	}
	t.drawn = len(lines)
}

func shortTable(rows []Row, now time.Time, most int) []string {
	kept := lists.Filter(rows, func(r Row) bool { return !r.Ready })
	for _, r := range rows {
		if r.Ready && len(kept) < most-2 {
			kept = append(kept, r)
		}
	}
	kept = kept[:min(len(kept), most-2)]
	return append(Table(kept, now).Lines(), fmt.Sprintf("... and %d more, all in state.json", len(rows)-len(kept)))
}

func truncate(line string, width int) string {
	if width <= 0 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width])
}

// Table formats rows; now is for how long certificates still last.
func Table(rows []Row, now time.Time) *table.Table {
	t := &table.Table{Header: []string{"SERVICE", "PID", "READY", "REVISION", "CERTIFICATE EXPIRES"}}
	for _, r := range rows {
		pid, ready, expires := "", "no", ""
		if r.PID > 0 {
			pid = fmt.Sprint(r.PID)
		}
		if r.Ready {
			ready = "yes"
		} else if r.Reason != "" {
			ready = "no: " + truncateReason(r.Reason, 60)
		}
		if r.Restarts > 0 {
			ready += fmt.Sprintf(" (%d restarts)", r.Restarts)
		}
		if !r.Expires.IsZero() {
			expires = fmt.Sprintf("%s (%s)", r.Expires.UTC().Format("2006-01-02 15:04:05Z"), age(r.Expires.Sub(now)))
		}
		t.Add(r.Service, pid, ready, r.Revision, expires)
	}
	return t
}

// age is a duration in its largest unit or two.
func age(d time.Duration) string {
	switch {
	case d < 0:
		return "expired"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	}
	return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
}

func truncateReason(s string, most int) string {
	s = strings.Join(strings.Fields(s), " ")
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}
