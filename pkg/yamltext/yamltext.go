// Package yamltext bounds what YAML and JSON cost before a decoder reads them: Check refuses a document whose decoding
// would take too much memory. The length of a text is no bound: a decoder may build a node of some hundred bytes from
// two bytes of text, and it writes an anchor's content out for each alias. config-watcher, node-agent and the CLI check
// what they read.
package yamltext

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxBytes bounds one document, both as written and with its aliases written out. A Kubernetes API server accepts
	// request bodies of this size, so no object of a cluster is larger.
	MaxBytes = 3 << 20
	// MaxIndicators bounds the characters of a document that begin a value: one in eight bytes of the largest document.
	// Ordinary objects have one in ten to twenty, the densest list of addresses one in ten. Decoding takes up to 600
	// bytes for each, at most 240 MiB in all.
	MaxIndicators = MaxBytes / 8
	// maxAliasedIndicators bounds them in a document with aliases. Check parses such a document to measure what the
	// aliases stand for, which takes about 250 bytes for each indicator, at most 25 MiB in all.
	maxAliasedIndicators = 100_000
)

// Error says which bound a text exceeds.
type Error struct {
	// Line is 1-based within the text; 1 if the error concerns the text as a whole.
	Line int
	// Reason says what is wrong, Remedy what to do about it.
	Reason, Remedy string
}

// Error implements error.
func (e *Error) Error() string { return e.Reason + "; " + e.Remedy }

// Check refuses one document whose decoding would cost too much. Its error is an *Error. A document that passes may
// still be invalid.
func Check(text []byte) error {
	if len(text) > MaxBytes {
		return &Error{1, fmt.Sprintf("document has %d bytes, more than %d", len(text), MaxBytes), "make the object smaller"}
	}
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		return &Error{1, "document is in UTF-16", "write it in UTF-8"}
	}
	n, aliased := scan(text)
	if n > MaxIndicators {
		return &Error{1, fmt.Sprintf("document has %d values or more, more than %d", n, MaxIndicators), "make the object smaller"}
	}
	if !aliased {
		return nil
	}
	if n > maxAliasedIndicators {
		return &Error{
			1, fmt.Sprintf("document has %d values or more, and aliases (*name): with those, more than %d are too many", n, maxAliasedIndicators),
			"write out what the aliases stand for, or put texts with & and * in quotes",
		}
	}
	var root yaml.Node
	if err := parse(text, &root); err != nil {
		return Unreadable(text, err)
	}
	return expand(&root)
}

var position = regexp.MustCompile(`^(?:error converting YAML to JSON: )?(?:yaml: )?line (\d+): `)

// Unreadable returns the error for a text that a parser does not accept, with the line that err names. Check refuses
// such a text because another parser might accept it.
func Unreadable(text []byte, err error) *Error {
	reason, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if m := position.FindStringSubmatch(reason); m != nil {
		if n, err := strconv.Atoi(m[1]); err == nil {
			reason, line = reason[len(m[0]):], n
		}
	}
	remedy := "correct the syntax"
	if tabbed(text, line) {
		remedy = "indent the line with spaces: YAML takes no tabs there"
	}
	return &Error{line, "not valid YAML: " + reason, remedy}
}

// tabbed reports whether a line is indented with a tab.
func tabbed(text []byte, line int) bool {
	lines := bytes.SplitN(text, []byte("\n"), line+1)
	if len(lines) < line {
		return false
	}
	is := lines[line-1]
	return bytes.ContainsRune(is[:len(is)-len(bytes.TrimLeft(is, " \t"))], '\t')
}

// parse parses a text, and turns panics of the parser on malformed input into errors.
func parse(text []byte, into *yaml.Node) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("cannot be parsed: %v", r)
		}
	}()
	return yaml.Unmarshal(text, into)
}

// scan counts the characters that may begin a value, and reports whether there may be an anchor and an alias to it.
// Both are upper bounds: scan does not recognise quotes, comments and block scalars, since a mistake there would let an
// attacker hide the rest of the text from it.
func scan(text []byte) (indicators int, aliased bool) {
	anchor, alias := false, false
	before := byte('\n')
	for i, c := range text {
		next := byte('\n')
		if i+1 < len(text) {
			next = text[i+1]
		}
		switch c {
		case '[', '{', ',', '?':
			indicators++
		case ':':
			if !plain(before) || !plain(next) {
				indicators++
			}
		case '-':
			if !plain(next) {
				indicators++
			}
		case '&', '*':
			if (word(next) || next == '-') && !word(before) {
				anchor = anchor || c == '&'
				alias = alias || c == '*'
			}
		}
		before = c
	}
	return indicators, anchor && alias
}

// word reports whether the character is certainly part of a word. Names of anchors consist of these and dashes.
func word(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// plain reports whether a colon beside the character is certainly part of a word, as in "10.0.0.1:80", "fd00::1" and
// "https://a".
func plain(c byte) bool { return word(c) || c == '-' || c == ':' || c == '.' || c == '/' || c == '@' }

// size is a node's size when its aliases are written out.
type size struct{ indicators, bytes int }

// limit is where sums stop growing: beyond every bound, and small enough that the sum of two does not overflow.
const limit = 1 << 40

func (s size) plus(o size) size {
	return size{min(s.indicators+o.indicators, limit), min(s.bytes+o.bytes, limit)}
}

func (s size) tooMuch() bool { return s.indicators > MaxIndicators || s.bytes > MaxBytes }

// expansion computes the size of a document with its aliases written out. It visits every node once: an anchor precedes
// its aliases, so its size is known at the first of them.
type expansion struct {
	anchors map[*yaml.Node]size
	// worst is the alias with the largest size.
	worst     *yaml.Node
	worstSize size
	// itself is an alias inside of the node that it refers to; nil if there is none.
	itself *yaml.Node
}

func expand(root *yaml.Node) error {
	e := &expansion{anchors: map[*yaml.Node]size{}}
	total := e.of(root)
	switch {
	case e.itself != nil:
		return &Error{e.itself.Line, fmt.Sprintf("alias *%s is part of what it stands for", e.itself.Value), "write out what it is to stand for"}
	case e.worst != nil && total.tooMuch():
		return &Error{
			e.worst.Line, fmt.Sprintf("with its aliases written out the document has %s; *%s stands for %s each time", total, e.worst.Value,
				e.worstSize),
			fmt.Sprintf("use fewer aliases: written out, at most %d bytes and %d values are read", MaxBytes, MaxIndicators),
		}
	}
	return nil
}

// String describes the size for an error message.
func (s size) String() string {
	if s.bytes >= limit || s.indicators >= limit {
		return "more bytes than there are"
	}
	return fmt.Sprintf("%d bytes and %d values", s.bytes, s.indicators)
}

// of returns the size of a node, and records the sizes of its anchors.
func (e *expansion) of(n *yaml.Node) size {
	if n.Kind == yaml.AliasNode {
		s, known := e.anchors[n.Alias]
		if !known && e.itself == nil {
			e.itself = n
		}
		if e.worst == nil || s.bytes+s.indicators > e.worstSize.bytes+e.worstSize.indicators {
			e.worst, e.worstSize = n, s
		}
		return s
	}
	// The text, an indicator for the node, and one between it and the next.
	s := size{indicators: 1, bytes: len(n.Value) + 2}
	for _, c := range n.Content {
		s = s.plus(e.of(c))
	}
	if n.Anchor != "" {
		e.anchors[n] = s
	}
	return s
}

// ItemLines returns the lines, 1-based within the text, where the items of a document's list "items" begin; nil if the
// text has none, or is not valid.
func ItemLines(text []byte) (lines []int) {
	var root yaml.Node
	if parse(text, &root) != nil || len(root.Content) == 0 || root.Content[0].Kind != yaml.MappingNode {
		return nil
	}
	members := root.Content[0].Content
	for i := 0; i+1 < len(members); i += 2 {
		if members[i].Value != "items" {
			continue
		}
		for _, item := range members[i+1].Content {
			lines = append(lines, item.Line)
		}
		return lines
	}
	return nil
}
