package caops

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/terminal"
	"fairlead.dev/proto/fairlead/caapi"
)

// Poll is how often Follow asks.
const Poll = time.Second

// View shows a status that changes.
type View interface {
	Show(s *caapi.Status)
	// Say shows a line beside it.
	Say(text string)
}

// Follow shows the status, beginning with first, until ctx ends or the rotation that is under way in first has ended.
// It returns the last status, and whether that rotation has ended. A ca that does not answer is asked again.
func (c *Client) Follow(ctx context.Context, first *caapi.Status, view View, clk clock.Clock) (last *caapi.Status, ended bool) {
	last = first
	said := ""
	view.Show(last)
	for first.Step == Idle || last.Step != Idle && last.Began.Equal(first.Began) {
		if !clock.Sleep(ctx, clk, Poll) {
			return last, false
		}
		status, err := c.Status(ctx)
		switch {
		case ctx.Err() != nil:
			return last, false
		case err == nil:
			last, said = status, ""
			view.Show(last)
		default:
			c.mesh = c.mesh.Renew() // replicas come and go
			if text := err.Error(); text != said {
				said = text
				view.Say(text + "; asking again")
			}
		}
	}
	return last, true
}

// Target is the ID of the signer that a rotation leads to.
func Target(s *caapi.Status) uint64 {
	if next := role(s, "next"); next != nil {
		return next.ID
	}
	return Current(s)
}

// Current is the ID of the signer that issues.
func Current(s *caapi.Status) uint64 {
	if now := role(s, "current"); now != nil {
		return now.ID
	}
	return 0
}

// role finds the signer of a role that only one has; nil if none has it.
func role(s *caapi.Status, name string) *caapi.Signer {
	i := slices.IndexFunc(s.Signers, func(signer caapi.Signer) bool { return signer.Role == name })
	if i < 0 {
		return nil
	}
	return &s.Signers[i]
}

// Plain is a View that prints a line for each change, with the time.
type Plain struct {
	W     io.Writer
	Clock interface{ Now() time.Time }
	last  string
}

// Show implements View.
func (p *Plain) Show(s *caapi.Status) {
	if text := Summary(s); text != p.last {
		p.last = text
		p.Say(text)
	}
}

// Say implements View.
func (p *Plain) Say(text string) {
	fmt.Fprintf(p.W, "%s  %s\n", p.Clock.Now().Format(time.TimeOnly), flat(text))
}

// Screen is a View that draws the whole status again in its place, on a terminal.
type Screen struct {
	W     io.Writer
	Clock interface{ Now() time.Time }
	// Size returns the terminal's width and height.
	Size  func() (width, height int)
	drawn int
	said  string
	lines []string
}

// Show implements View.
func (t *Screen) Show(s *caapi.Status) {
	t.lines, t.said = Lines(s, t.Clock.Now()), ""
	t.draw()
}

// Say implements View: the text stays below the status until there is a newer one.
func (t *Screen) Say(text string) {
	t.said = flat(text)
	t.draw()
}

func (t *Screen) draw() {
	lines := t.lines
	if t.said != "" {
		lines = append(slices.Clone(lines), "", t.said)
	}
	width, height := t.Size()
	if most := max(height-1, 3); len(lines) > most {
		cut := fmt.Sprintf("... and %d more lines: `fairlead ca status`", len(lines)-most+1)
		lines = append(slices.Clone(lines[:most-1]), cut)
	}
	var b strings.Builder
	if t.drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", t.drawn)
	}
	b.WriteString("\r\x1b[J")
	for _, line := range lines {
		line = terminal.Text(line)
		if width > 0 && utf8.RuneCountInString(line) > width {
			line = string([]rune(line)[:width])
		}
		b.WriteString(line + "\n")
	}
	t.drawn = len(lines)
	_, _ = io.WriteString(t.W, b.String())
}
