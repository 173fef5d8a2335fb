package manifest

import (
	"bytes"
	"strconv"
)

// Most objects are written in a small part of YAML: mappings and lists in block style, with scalars of one line, as
// kubectl prints them. block decodes that part, in a tenth of the time of the YAML library. It gives up on
// everything else and on every mistake, and decode then calls the library, so that the library alone decides what is
// valid and words the errors. FuzzBlock holds what block decodes against the library.
type block struct {
	rest  []byte // the lines after the current one
	texts texts
	// content is the current line from its first character on, indent its column; done is true after the last line.
	content []byte
	indent  int
	done    bool
	// failed is true after block has given up.
	failed bool
}

// maxKey bounds the length of a key; the library bounds it too, at 1024.
const maxKey = 256

// decodeBlock returns a document's object; ok is false if only the library can tell.
func decodeBlock(text []byte, known texts) (tree map[string]any, ok bool) {
	for _, c := range text {
		if (c < ' ' || c > '~') && c != '\n' {
			return nil, false
		}
	}
	b := block{rest: text, texts: known}
	b.next()
	tree = b.mapping(b.indent)
	return tree, b.done && !b.failed && len(tree) > 0
}

// next goes to the next line that is neither blank nor a comment.
func (b *block) next() {
	for len(b.rest) > 0 {
		line := b.rest
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			line, b.rest = line[:end], b.rest[end+1:]
		} else {
			b.rest = nil
		}
		b.content = trimSpaces(line)
		b.indent = len(line) - len(b.content)
		if len(b.content) > 0 && b.content[0] != '#' {
			return
		}
	}
	b.content, b.indent, b.done = nil, -1, true
}

// fail gives up: there is no line left for any caller.
func (b *block) fail() {
	b.failed, b.rest = true, nil
	b.next()
}

// node decodes the mapping or list whose first line is the current one.
func (b *block) node() any {
	if dash(b.content) {
		return b.list(b.indent)
	}
	return b.mapping(b.indent)
}

func (b *block) mapping(indent int) map[string]any {
	m := map[string]any{}
	for b.indent == indent && !b.done {
		name, value, ok := cutKey(b.content)
		key, _ := b.texts.of(name).(string)
		if _, twice := m[key]; twice || !ok {
			b.fail()
			return nil
		}
		m[key] = b.value(indent, value, true)
	}
	b.ended(indent)
	return m
}

func (b *block) list(indent int) []any {
	l := []any{}
	for b.indent == indent && dash(b.content) {
		item := trimSpaces(b.content[1:])
		if _, _, keyed := cutKey(item); keyed || dash(item) {
			// The item begins on the line of its dash.
			b.indent, b.content = indent+len(b.content)-len(item), item
			l = append(l, b.node())
		} else {
			l = append(l, b.value(indent, item, false))
		}
	}
	b.ended(indent)
	return l
}

// ended gives up if a deeper line follows a mapping or list: it may continue a text.
func (b *block) ended(indent int) {
	if b.indent > indent {
		b.fail()
	}
}

// value decodes what follows a key or a dash on its line, or the lines below. In a mapping a list may be as deep as its
// key.
func (b *block) value(indent int, text []byte, inMapping bool) any {
	if len(text) == 0 || text[0] == '#' {
		b.next()
		if b.indent > indent || inMapping && b.indent == indent && dash(b.content) {
			return b.node()
		}
		return nil
	}
	v, ok := b.scalar(text)
	if b.next(); !ok || b.indent > indent {
		b.fail()
	}
	return v
}

// scalar decodes a text of one line that is not empty.
func (b *block) scalar(text []byte) (v any, ok bool) {
	switch text[0] {
	case '"', '\'':
		quoted, after, closed := bytes.Cut(text[1:], text[:1])
		if !closed || !nothing(after) || bytes.IndexByte(quoted, '\\') >= 0 {
			return nil, false
		}
		return b.texts.of(quoted), true
	case '{':
		return map[string]any{}, len(text) > 1 && text[1] == '}' && nothing(text[2:])
	case '[':
		return []any{}, len(text) > 1 && text[1] == ']' && nothing(text[2:])
	}
	if comment := bytes.Index(text, []byte(" #")); comment >= 0 {
		text = text[:comment]
	}
	text = bytes.TrimRight(text, " ")
	if text[len(text)-1] == ':' || bytes.Contains(text, []byte(": ")) {
		return nil, false
	}
	switch c := text[0]; {
	case letter(c) || c == '/':
		if word, special := words[string(text)]; special {
			return word, true
		}
		return b.texts.of(text), true
	case digit(c):
		return b.number(text)
	}
	return nil, false
}

// number decodes a text that begins with a digit: an integer, or a text that the library cannot take for any number.
func (b *block) number(text []byte) (v any, ok bool) {
	digits, dots, other := 0, 0, false
	for _, c := range text {
		switch {
		case digit(c):
			digits++
		case c == '.':
			dots++
		case c == '_' || c == '+' || c == '-' || c == 'e' || c == 'E':
		case letter(c):
			other = other || text[0] != '0' // "0x1f" is a number
		default:
			other = true
		}
	}
	switch {
	case dots > 1 || other:
		return b.texts.of(text), true
	case digits < len(text) || digits > 1 && text[0] == '0':
		return nil, false
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, err == nil
}

// words are texts that are no strings, as in YAML 1.1.
var words = map[string]any{
	"y": true, "Y": true, "yes": true, "Yes": true, "YES": true, "on": true, "On": true, "ON": true, "true": true, "True": true, "TRUE": true,
	"n": false, "N": false, "no": false, "No": false, "NO": false, "off": false, "Off": false, "OFF": false, "false": false, "False": false,
	"FALSE": false,
	"null":  nil, "Null": nil, "NULL": nil,
}

// cutKey divides "key: value"; ok is false if the line does not begin with a key that is certainly a string.
func cutKey(line []byte) (key, value []byte, ok bool) {
	end := 0
	for end < len(line) && (letter(line[end]) || end > 0 && (digit(line[end]) || line[end] == '.' || line[end] == '/' || line[end] == '-')) {
		end++
	}
	if end == 0 || end > maxKey || end == len(line) || line[end] != ':' || end+1 < len(line) && line[end+1] != ' ' {
		return nil, nil, false
	}
	if _, special := words[string(line[:end])]; special {
		return nil, nil, false
	}
	return line[:end], trimSpaces(line[end+1:]), true
}

func dash(line []byte) bool {
	return len(line) > 0 && line[0] == '-' && (len(line) == 1 || line[1] == ' ')
}

// nothing reports whether only spaces and a comment follow a value.
func nothing(after []byte) bool {
	rest := trimSpaces(after)
	return len(rest) == 0 || len(rest) < len(after) && rest[0] == '#'
}

func trimSpaces(line []byte) []byte {
	n := 0
	for n < len(line) && line[n] == ' ' {
		n++
	}
	return line[n:]
}

func digit(c byte) bool  { return c >= '0' && c <= '9' }
func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }

// texts holds the short strings of one file once: most keys, and many values, are in every object.
type texts map[string]any

const (
	maxText  = 64
	maxTexts = 4096
)

// of returns the string.
func (t texts) of(b []byte) any {
	if known, ok := t[string(b)]; ok {
		return known
	}
	var s any = string(b)
	if len(b) <= maxText && len(t) < maxTexts {
		t[string(b)] = s
	}
	return s
}
