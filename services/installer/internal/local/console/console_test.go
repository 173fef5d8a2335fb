package console_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"

	"fairlead.dev/services/installer/internal/local/console"
)

var now = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func rows() []console.Row {
	return []console.Row{
		{Service: "ca", PID: 10, Ready: true, Expires: now.Add(26*time.Hour + 5*time.Minute)},
		{Service: "web-0.shop/istio-proxy", PID: 11, Ready: true, Revision: "7", Expires: now.Add(59 * time.Minute)},
		{Service: "web-0.shop/web", Reason: "exit status 1\nand more", Restarts: 2},
	}
}

func TestTable(t *testing.T) {
	got := strings.Join(console.Table(rows(), now).Lines(), "\n")
	want := strings.TrimSpace(`
SERVICE                  PID   READY                                     REVISION   CERTIFICATE EXPIRES
ca                       10    yes                                       -          2026-01-02 14:05:00Z (26h05m)
web-0.shop/istio-proxy   11    yes                                       7          2026-01-01 12:59:00Z (59m)
web-0.shop/web           -     no: exit status 1 and more (2 restarts)   -          -`)
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestPlainPrintsChangesOnly(t *testing.T) {
	var out bytes.Buffer
	p := console.NewPlain(&out, testkit.NewClock(now))
	p.Show(rows())
	p.Show(rows())
	next := rows()
	next[0] = console.Row{Service: "ca", Reason: "signal: killed"}
	next[1].Ready, next[1].Reason = false, "not ready: 503"
	next[2] = console.Row{Service: "web-0.shop/web", PID: 20, Ready: true}
	p.Show(next)
	p.Line("done")
	want := `12:00:00  ca is ready, pid 10
12:00:00  web-0.shop/istio-proxy is ready, pid 11
12:00:00  ca has ended: signal: killed
12:00:00  web-0.shop/istio-proxy is not ready: not ready: 503
12:00:00  web-0.shop/web is ready, pid 20
12:00:00  done
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// TestPlainForgetsWhatIsNotShown: a process that comes back after its Pod was scaled down has not ended just then.
func TestPlainForgetsWhatIsNotShown(t *testing.T) {
	var out bytes.Buffer
	p := console.NewPlain(&out, testkit.NewClock(now))
	p.Show([]console.Row{{Service: "web", PID: 20, Ready: true}})
	p.Show(nil)
	p.Show([]console.Row{{Service: "web", Reason: "starts"}})
	p.Show([]console.Row{{Service: "web", PID: 21, Ready: true}})
	if want := "12:00:00  web is ready, pid 20\n12:00:00  web is ready, pid 21\n"; out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestTerminalRedrawsInPlace(t *testing.T) {
	var out bytes.Buffer
	term := console.NewTerminal(&out, testkit.NewClock(now), func() (int, int) { return 30, 24 })
	term.Show(rows())
	for _, l := range strings.Split(strings.TrimPrefix(out.String(), "\r\x1b[J"), "\n") {
		if len([]rune(l)) > 30 {
			t.Errorf("line is wider than the terminal: %q", l)
		}
	}
	out.Reset()
	term.Line("hello")
	// Over the four lines of the table, the line first, then the table again.
	if s := out.String(); !strings.HasPrefix(s, "\x1b[4A\r\x1b[Jhello\n") || strings.Count(s, "SERVICE") != 1 {
		t.Errorf("%q", s)
	}
}

func TestTerminalShowsWhatNeedsAttentionFirst(t *testing.T) {
	var out bytes.Buffer
	term := console.NewTerminal(&out, testkit.NewClock(now), func() (int, int) { return 0, 8 })
	var many []console.Row
	for i := range 30 {
		many = append(many, console.Row{Service: fmt.Sprintf("p%02d", i), PID: i + 1, Ready: i != 29})
	}
	term.Show(many)
	s := out.String()
	if !strings.Contains(s, "p29") || !strings.Contains(s, "... and 26 more") || strings.Count(s, "\n") > 7 {
		t.Errorf("%s", s)
	}
}
