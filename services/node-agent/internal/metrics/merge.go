package metrics

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// format is that of an exposition.
type format int

const (
	text format = iota
	openMetrics
)

const (
	// maxLine bounds a line; longer ones are left out.
	maxLine = 64 << 10
	// maxFamilies and maxNames bound the names that a merge remembers, and their bytes. Those beyond have no HELP and
	// TYPE.
	maxFamilies = 20000
	maxNames    = 4 << 20
)

var (
	errTooLarge  = errors.New("larger than permitted; the rest is left out")
	errTruncated = errors.New("the exposition ends without # EOF")
)

// source is one of the expositions that are merged.
type source struct {
	format format
	// limit bounds its bytes.
	limit int64
	// rename, if set, returns the name under which a metric is exposed. It is given names of samples and of families.
	rename func(name []byte) []byte
	// check leaves lines out that a scraper would refuse, and the whole exposition with them.
	check bool
	// whole is true if an exposition of OpenMetrics ends with # EOF.
	whole bool
}

// merger writes several expositions as one of its format, line by line. A family that several sources have, or one has
// twice, has HELP and TYPE once, those that came first: a second TYPE is an error for scrapers.
type merger struct {
	out    *bufio.Writer
	format format
	reader *bufio.Reader
	// seen has the names of all families so far.
	seen map[string]struct{}
	// names is how many bytes they have.
	names int
	// failed is the error of out: the scraper has gone.
	failed error
}

func newMerger(w io.Writer, f format) *merger {
	return &merger{out: bufio.NewWriterSize(w, 32<<10), format: f, reader: bufio.NewReaderSize(nil, maxLine), seen: map[string]struct{}{}}
}

// family is the one whose samples are being read.
type family struct {
	name             string
	help, kind, unit string
	written          bool
}

// copy adds an exposition. It keeps what came before an error, up to the last whole line.
func (m *merger) copy(r io.Reader, src source) error {
	m.reader.Reset(r)
	c := copier{merger: m, source: src}
	if err := c.lines(); err != nil {
		return err
	}
	switch {
	case m.failed != nil:
	case c.bad > 0:
		return fmt.Errorf("%d lines are malformed, or longer than %d bytes, and are left out", c.bad, maxLine)
	case src.format == openMetrics && src.whole && !c.ended:
		return errTruncated
	}
	return nil //nolint:nilerr // an error of the scraper's connection is not the source's
}

// lines reads the source to its end, or until the scraper has gone.
func (c *copier) lines() error {
	for left := c.source.limit; c.failed == nil && !c.ended; {
		line, err := c.reader.ReadSlice('\n')
		left -= int64(len(line))
		for errors.Is(err, bufio.ErrBufferFull) && left >= 0 {
			var more []byte
			more, err = c.reader.ReadSlice('\n')
			left -= int64(len(more))
			if line = nil; !errors.Is(err, bufio.ErrBufferFull) {
				c.bad++
			}
		}
		switch {
		case left < 0:
			return fmt.Errorf("%d bytes: %w", c.source.limit, errTooLarge)
		case errors.Is(err, io.EOF):
			c.line(bytes.TrimRight(line, "\r\n"))
			return nil
		case err != nil:
			return err
		}
		c.line(bytes.TrimRight(line, "\r\n"))
	}
	return nil
}

// finish ends the exposition.
func (m *merger) finish() {
	if m.format == openMetrics {
		m.write("# EOF\n")
	}
	m.failed = m.out.Flush()
}

// write writes parts of a line. After an error bufio.Writer repeats it.
func (m *merger) write(parts ...string) {
	for _, p := range parts {
		_, m.failed = m.out.WriteString(p)
	}
}

func (m *merger) writeBytes(parts ...[]byte) {
	for _, p := range parts {
		_, m.failed = m.out.Write(p)
	}
}

var (
	space   = []byte(" ")
	newline = []byte("\n")
)

// copier adds the lines of one exposition.
type copier struct {
	*merger
	source source
	family family
	bad    int
	ended  bool
}

func (c *copier) line(line []byte) {
	switch {
	case len(line) == 0:
	case line[0] == '#':
		c.metadata(string(line))
	default:
		c.sample(line)
	}
}

// metadata reads a line that begins with #. Comments are left out: OpenMetrics has none.
func (c *copier) metadata(line string) {
	if c.source.format == openMetrics && line == "# EOF" {
		c.ended = true
		return
	}
	fields := strings.SplitN(line, " ", 4)
	if c.source.format == text {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "#" && (f[1] == "HELP" || f[1] == "TYPE") {
			rest := strings.TrimLeft(line[strings.Index(line, f[1])+len(f[1]):], " \t")
			fields = []string{"#", f[1], f[2], strings.TrimLeft(rest[len(f[2]):], " \t")}
		}
	}
	if len(fields) < 3 || fields[0] != "#" {
		return
	}
	name, value := fields[2], ""
	if len(fields) > 3 {
		value = fields[3]
	}
	if fields[1] != "HELP" && fields[1] != "TYPE" && fields[1] != "UNIT" {
		return
	}
	if nameLength([]byte(name), true) != len(name) || c.source.check && fields[1] != "HELP" &&
		!knownType(fields[1], strings.TrimSpace(value)) {
		c.bad++
		return
	}
	if name != c.family.name || c.family.written {
		c.family = family{name: name}
	}
	at := &c.family.help
	switch fields[1] {
	case "TYPE":
		at = &c.family.kind
	case "UNIT":
		at = &c.family.unit
	}
	if *at == "" {
		*at = value
	}
}

// types of metrics, by their names in OpenMetrics and in text.
var types = []string{"counter", "gauge", "histogram", "summary", "unknown", "untyped", "info", "stateset", "gaugehistogram"}

func knownType(word, value string) bool {
	if word != "TYPE" {
		return nameLength([]byte(value), true) == len(value)
	}
	return slices.Contains(types, value)
}

// suffixes of the samples of a family.
var suffixes = []string{"", "_total", "_bucket", "_sum", "_count", "_created", "_info", "_gsum", "_gcount"}

// has reports whether a sample of the name belongs to the family.
func (f *family) has(name []byte) bool {
	if len(name) < len(f.name) || string(name[:len(f.name)]) != f.name || f.name == "" {
		return false
	}
	for _, s := range suffixes {
		if string(name[len(f.name):]) == s {
			return true
		}
	}
	return false
}

func (c *copier) sample(line []byte) {
	s := sample{name: line[:nameLength(line, true)]}
	parsed := c.source.check || c.source.format != c.format
	if parsed {
		var ok bool
		if s, ok = parse(line, c.source.format); !ok {
			c.bad++
			return
		}
	}
	if !c.family.has(s.name) {
		c.family = family{name: string(s.name)}
	}
	if !c.family.written {
		c.family.written = true
		c.head()
	}
	name, rest := s.name, line[len(s.name):]
	if c.source.rename != nil {
		name = c.source.rename(name)
	}
	if !parsed {
		c.writeBytes(name, rest, newline)
		return
	}
	c.writeBytes(name, s.labels, space, s.value)
	switch {
	case len(s.time) == 0:
	case c.source.format == c.format:
		c.writeBytes(space, s.time)
	case c.format == text:
		c.writeBytes(space, millis(s.time))
	default:
		c.writeBytes(space, seconds(s.time))
	}
	if c.format == openMetrics && len(s.exemplar) > 0 {
		c.writeBytes(space, s.exemplar)
	}
	c.writeBytes(newline)
}

// head writes HELP and TYPE of the family before its first sample.
func (c *copier) head() {
	f := c.family
	name := f.name
	if c.source.rename != nil {
		name = string(c.source.rename([]byte(name)))
	}
	help, kind := f.help, strings.TrimSpace(f.kind)
	switch {
	case c.source.format == c.format:
	case c.format == openMetrics:
		name, kind = toOpenMetrics(name, kind)
		help = strings.ReplaceAll(help, `"`, `\"`)
	default:
		name, kind = toText(name, kind)
		help, f.unit = strings.ReplaceAll(help, `\"`, `"`), ""
	}
	if _, again := c.seen[name]; again || len(c.seen) >= maxFamilies || c.names+len(name) > maxNames {
		return
	}
	c.seen[name] = struct{}{}
	c.names += len(name)
	if help != "" {
		c.write("# HELP ", name, " ", help, "\n")
	}
	if kind != "" {
		c.write("# TYPE ", name, " ", kind, "\n")
	}
	if f.unit != "" {
		c.write("# UNIT ", name, " ", f.unit, "\n")
	}
}

// toOpenMetrics is the family of a text exposition in OpenMetrics. The samples of a counter must end with _total there.
// The names of Envoy's counters do not, and stay as they are: dashboards know them. Their type is then unknown.
func toOpenMetrics(name, kind string) (string, string) {
	switch short, total := strings.CutSuffix(name, "_total"); {
	case kind == "counter" && total:
		return short, kind
	case kind == "counter", kind == "untyped":
		return name, "unknown"
	}
	return name, kind
}

// toText is the family of OpenMetrics in a text exposition, which names it as its samples.
func toText(name, kind string) (string, string) {
	switch kind {
	case "counter":
		return name + "_total", kind
	case "info":
		return name + "_info", "gauge"
	case "stateset":
		return name, "gauge"
	case "unknown":
		return name, "untyped"
	case "gaugehistogram":
		return name, ""
	}
	return name, kind
}
