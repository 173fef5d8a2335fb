package suite

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// verdict of a line.
type verdict int

const (
	none   verdict = iota // the line has no goal
	reach                 // goal reached
	near                  // missed by no more than noise
	missed                // missed
)

func (v verdict) String() string {
	return [...]string{"", "pass", "pass (noise)", "**miss**"}[v]
}

// noise is by how much a time may be above its goal before the goal counts as missed: two measurements on a shared
// machine differ so much.
const noise = 1.25

// line is one line of the table.
type line struct {
	id, what                         string
	figure, floor, ratio, goal, peer string
	verdict                          verdict
}

// table collects lines and prints each as soon as it is known.
type table struct {
	lines []line
	out   io.Writer
	// claimed are the ids of lines whose goals are claimed to be reached.
	claimed map[string]bool
	// marker names the table in its page, and decides its columns.
	marker string
}

// Tables of the page, by their markers: the usual one compares with a floor and istiod's figures, tableKube and
// tableGateway with istiod alone, tableConsul with nothing but goals.
const (
	tableUsual   = "table"
	tableKube    = "kube"
	tableGateway = "gateway"
	tableConsul  = "consul"
)

func (t *table) add(l line) {
	t.lines = append(t.lines, l)
	fmt.Fprintf(t.out, "%-34s %-62s %-30s floor %-24s ratio %-6s goal %-24s peer %-14s %s\n", l.id, l.what, l.figure, or(l.floor), or(l.ratio),
		or(l.goal), or(l.peer), l.verdict)
}

func or(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// judge compares a figure with its goal; exact figures, such as bytes, know no noise.
func judge(figure, goal float64, exact bool) verdict {
	switch {
	case figure <= goal:
		return reach
	case !exact && figure <= goal*noise:
		return near
	default:
		return missed
	}
}

// markdown is the table as it stands in the documentation.
func (t *table) markdown() string {
	var b strings.Builder
	if t.marker == tableConsul {
		b.WriteString("| row | measured | goal | |\n|---|---|---|---|\n")
		for _, l := range t.lines {
			fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", l.what, l.figure, or(l.goal), l.verdict)
		}
		return b.String()
	}
	if t.marker == tableKube || t.marker == tableGateway {
		b.WriteString("| row | Fairlead | istiod | ratio | goal | |\n|---|---|---|---|---|---|\n")
		for _, l := range t.lines {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", l.what, l.figure, or(l.peer), or(l.ratio), or(l.goal), l.verdict)
		}
		return b.String()
	}
	b.WriteString("| row | measured | floor | ratio | goal | istiod | |\n|---|---|---|---|---|---|---|\n")
	for _, l := range t.lines {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", l.what, l.figure, or(l.floor), or(l.ratio), or(l.goal), or(l.peer), l.verdict)
	}
	return b.String()
}

// misses lists the claimed goals that were missed.
func (t *table) misses() []string {
	var ids []string
	for _, l := range t.lines {
		if l.verdict == missed && t.claimed[l.id] {
			ids = append(ids, l.id)
		}
	}
	return ids
}

// markers of a table in its page.
func markers(name string) (begin, end string) {
	return "<!-- " + name + ": begin -->\n", "<!-- " + name + ": end -->\n"
}

// writePage puts a table between its markers in a page.
func writePage(path, name, table string) error {
	beginMarker, endMarker := markers(name)
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(raw), beginMarker)
	_, tail, ok2 := strings.Cut(rest, endMarker)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no %q and %q on lines of their own", path, strings.TrimSpace(beginMarker), strings.TrimSpace(endMarker))
	}
	return os.WriteFile(path, []byte(head+beginMarker+"\n"+table+"\n"+endMarker+tail), 0o644) //nolint:gosec // a page for everybody
}

// Figures as people read them.

func ms(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	default:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1e3)
	}
}

func size(n float64) string {
	switch {
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", n/(1<<20))
	case n >= 10<<10:
		return fmt.Sprintf("%.0f KiB", n/(1<<10))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", n/(1<<10))
	default:
		return fmt.Sprintf("%.0f B", n)
	}
}

func times(a, b float64) string {
	if b == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", a/b)
}
