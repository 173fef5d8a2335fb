// Package manifest turns a user's YAML or JSON into generic objects and remembers where each field stood.
package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"strconv"
	"strings"

	yaml3 "go.yaml.in/yaml/v3"
	kjson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"fairlead.dev/pkg/yamltext"
	"fairlead.dev/services/config-watcher/internal/object"
)

// Limits before decoding. A document above them, or above those of package yamltext, is refused unread.
const (
	// MaxFileBytes is room for as many ordinary objects as MaxDocuments. A file is in memory as a whole while it is
	// read.
	MaxFileBytes     = 64 << 20
	MaxDocumentBytes = yamltext.MaxBytes
	// MaxDocuments bounds the documents of one file, and with them its problems.
	MaxDocuments = 100_000
	// maxDepth bounds nesting: no kind nests deeper than a few dozen levels, and parsers recurse.
	maxDepth = 200
	// maxPath bounds the path of a field, which repeats the names of all members above it: what is deeper is named by
	// its ancestor.
	maxPath = 1 << 10
	// maxIndex bounds what the paths of a document take in memory. A field that is left out is found by its ancestor,
	// too.
	maxIndex = 16 << 20
)

// Document is one object of a file, decoded as far as a generic tree.
type Document struct {
	// File is the name given to Parse.
	File string
	// Line is the 1-based line in File where the document's content starts.
	Line int
	// Tree is the object: map[string]any, []any, string, bool, int64, float64, nil.
	Tree map[string]any

	text []byte
	// first is the line of text in File: that of the List for an item of one, Line otherwise.
	first int
	// prefix is the path of the object within its document, set for items of a List.
	prefix string
	lines  map[string]int
}

// Location is "file:line" of the document, or the line alone of nothing is known of the file.
func (d *Document) Location() string { return locate(d.File, d.Line) }

// FieldLocation is "file:line" of the field at the JSON path ("spec.http[0].route"), or of its nearest ancestor that was written.
func (d *Document) FieldLocation(path string) string { return locate(d.File, d.line(path)) }

// line of the field at a path, or of its nearest ancestor that was written.
func (d *Document) line(path string) int {
	if d.prefix != "" {
		path = strings.TrimSuffix(d.prefix+"."+path, ".")
	}
	for lines := d.index(); path != ""; {
		if n, ok := lines[path]; ok {
			return d.first + n - 1
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			break
		}
		path = path[:cut]
	}
	return max(d.Line, d.first)
}

// index maps JSON paths of the text to its lines. The items of a List share one.
func (d *Document) index() map[string]int {
	if d.lines == nil {
		d.lines = indexLines(d.text)
	}
	return d.lines
}

func locate(file string, line int) string {
	if file == "" {
		return ""
	}
	return file + ":" + strconv.Itoa(line)
}

// LineOf returns the line of a location "file:line"; 0 if it has none.
func LineOf(location string) int {
	line, _ := strconv.Atoi(location[strings.LastIndexByte(location, ':')+1:])
	return line
}

// Parse is Each for content with few documents: it returns them all.
func Parse(file string, content []byte) ([]*Document, object.Problems) {
	var docs []*Document
	problems := Each(file, content, func(d *Document) { docs = append(docs, d) })
	return docs, problems
}

// Each divides content at "---" lines, decodes one document after the other and hands it to do, so that only one of
// them is in memory at a time. Documents that decode are handed on even if others do not; empty ones are skipped; a
// List of any kind is handed on as its items. Each never panics on any input.
func Each(file string, content []byte, do func(*Document)) object.Problems {
	if len(content) > MaxFileBytes {
		return object.Problems{{Location: file, Reason: fmt.Sprintf("file has more than %d bytes", MaxFileBytes), Remedy: "divide it into several files"}}
	}
	var problems object.Problems
	count := 0
	for part := range split(content) {
		if count++; count > MaxDocuments {
			return append(problems, object.Problem{Location: locate(file, part.line), Reason: fmt.Sprintf("more than %d documents", MaxDocuments), Remedy: "divide the file"})
		}
		got, p := decode(file, part)
		for _, d := range got {
			do(d)
		}
		if p != nil {
			problems = append(problems, *p)
		}
	}
	return problems
}

// Fragment is a document that cannot be decoded.
type Fragment struct {
	File string
	// Line is the 1-based line in File where the fragment starts.
	Line int
	Text []byte
}

// Location is "file:line" of the fragment.
func (f Fragment) Location() string { return locate(f.File, f.Line) }

// Fragments returns the documents of content that Parse reports as problems, of those whose text matches. Content that
// Parse refuses unread is one fragment; a document beyond MaxDocuments is one each.
func Fragments(file string, content []byte, match func(text []byte) bool) []Fragment {
	if len(content) > MaxFileBytes {
		if !match(content) {
			return nil
		}
		return []Fragment{{File: file, Line: 1, Text: content}}
	}
	var out []Fragment
	count := 0
	for p := range split(content) {
		count++
		if !match(p.text) {
			continue
		}
		if count > MaxDocuments {
			out = append(out, Fragment{File: file, Line: p.line, Text: p.text})
			continue
		}
		if docs, problem := decode(file, p); problem != nil && len(docs) == 0 {
			out = append(out, Fragment{File: file, Line: p.line, Text: p.text})
		}
	}
	return out
}

// Empty tells content without any document: nothing but blanks, comments and dividers.
func Empty(content []byte) bool {
	for range split(content) {
		return false
	}
	return true
}

type part struct {
	line int
	text []byte
}

// split cuts at lines that start with "---" and drops parts that hold nothing but comments.
func split(content []byte) iter.Seq[part] {
	return func(yield func(part) bool) {
		content := bytes.TrimPrefix(content, []byte("\xef\xbb\xbf"))
		line, start, startLine := 1, 0, 1
		flush := func(end int) bool {
			text := content[start:end]
			return blank(text) || yield(part{startLine, text})
		}
		for at := 0; at < len(content); {
			end := len(content)
			next := end
			if i := bytes.IndexByte(content[at:], '\n'); i >= 0 {
				end = at + i
				next = end + 1
			}
			text := bytes.TrimRight(content[at:end], " \t\r")
			if bytes.Equal(text, []byte("---")) || bytes.HasPrefix(text, []byte("--- ")) {
				if !flush(at) {
					return
				}
				start, startLine = next, line+1
				if rest := bytes.TrimSpace(text[3:]); len(rest) > 0 && rest[0] != '#' {
					start, startLine = at+4, line
				}
			}
			at = next
			line++
		}
		flush(len(content))
	}
}

func blank(text []byte) bool {
	for l := range bytes.Lines(text) {
		l = bytes.TrimSpace(l)
		if len(l) > 0 && l[0] != '#' && !bytes.Equal(l, []byte("...")) {
			return false
		}
	}
	return true
}

func decode(file string, p part) ([]*Document, *object.Problem) {
	// Content starts at the first line that is neither blank nor a comment: that is where an editor should jump to.
	line := p.line
	text := p.text
	for {
		i := bytes.IndexByte(text, '\n')
		if i < 0 || !blank(text[:i]) {
			break
		}
		text = text[i+1:]
		line++
	}
	var over *yamltext.Error
	if errors.As(yamltext.Check(text), &over) {
		return nil, &object.Problem{Location: locate(file, line+over.Line-1), Reason: object.Cut(over.Reason, 300), Remedy: over.Remedy}
	}
	if tooDeep(text) {
		return nil, &object.Problem{Location: locate(file, line), Reason: fmt.Sprintf("document nests deeper than %d levels", maxDepth), Remedy: "flatten it; no kind needs that"}
	}
	tree, err := toTree(text)
	if err != nil {
		at, reason := yamlError(line, err)
		return nil, &object.Problem{Location: locate(file, at), Reason: "not valid YAML: " + reason, Remedy: yamltext.Unreadable(text, err).Remedy + "; nothing of this document was taken over"}
	}
	if tree == nil {
		return nil, nil
	}
	m, ok := tree.(map[string]any)
	if !ok {
		return nil, &object.Problem{Location: locate(file, line), Reason: "document is no object", Remedy: "start it with apiVersion, kind and metadata"}
	}
	return items(&Document{File: file, Line: line, Tree: m, text: text, first: line})
}

// toTree decodes YAML (or JSON) with duplicate keys refused. Numbers become int64 or float64 as in Kubernetes.
func toTree(text []byte) (tree any, err error) {
	defer func() {
		// The YAML decoder reports some malformed input by panicking with its own types; whatever it is, it is the document's fault.
		if r := recover(); r != nil {
			tree, err = nil, fmt.Errorf("cannot be parsed: %v", r)
		}
	}()
	js, err := yaml.YAMLToJSONStrict(text)
	if err != nil && overridesMerged(text) {
		js, err = yaml.YAMLToJSON(text)
	}
	if err != nil {
		return nil, err
	}
	if err := kjson.Unmarshal(js, &tree); err != nil {
		return nil, err
	}
	return tree, nil
}

// overridesMerged tells whether a text has no key twice but those that override what "<<" merged, which the strict decoder takes for duplicates. A merge
// that does not come first is not among them: the decoder would let it win over the keys before it.
func overridesMerged(text []byte) bool {
	var root yaml3.Node
	return bytes.Contains(text, []byte("<<")) && yaml3.Unmarshal(text, &root) == nil && mergesFirst(&root)
}

// mergesFirst tells whether every mapping has its merge before its keys, and each key once.
func mergesFirst(n *yaml3.Node) bool {
	var keys map[string]bool
	if n.Kind == yaml3.MappingNode {
		keys = make(map[string]bool, len(n.Content)/2)
	}
	for i, c := range n.Content {
		if keys != nil && i%2 == 0 {
			if i > 0 && c.Tag == "!!merge" || keys[c.Value] {
				return false
			}
			keys[c.Value] = true
		}
		if !mergesFirst(c) {
			return false
		}
	}
	return true
}

var yamlLine = regexp.MustCompile(`(?:yaml: |^)(?:unmarshal errors:\s*)?line (\d+): `)

// yamlError turns the decoder's relative line into one of the file.
func yamlError(first int, err error) (int, string) {
	msg := strings.TrimPrefix(err.Error(), "error converting YAML to JSON: ")
	msg = strings.Join(strings.Fields(msg), " ")
	if m := yamlLine.FindStringSubmatchIndex(msg); m != nil {
		if n, convErr := strconv.Atoi(msg[m[2]:m[3]]); convErr == nil {
			return first + n - 1, object.Cut(msg[m[1]:], 300)
		}
	}
	return first, object.Cut(strings.TrimPrefix(msg, "yaml: "), 300)
}

// tooDeep bounds nesting before a recursive parser sees the text: brackets outside quotes, and indentation.
func tooDeep(text []byte) bool {
	depth, quote := 0, byte(0)
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quote == '"' && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"':
			quote = c
		case c == '[' || c == '{':
			if depth++; depth > maxDepth {
				return true
			}
		case c == ']' || c == '}':
			if depth > 0 {
				depth--
			}
		case c == '\n':
			// "- - - -" and "? ? ?" nest within one line.
			if nested(text[i+1:]) {
				return true
			}
		}
	}
	return nested(text)
}

// nested reports whether the line that text begins with opens more than maxDepth block levels by itself.
func nested(text []byte) bool {
	n := 0
	for i := 0; i+1 < len(text) && text[i] != '\n'; i++ {
		switch {
		case text[i] == ' ':
		case (text[i] == '-' || text[i] == '?' || text[i] == ':') && text[i+1] == ' ':
			n++
		default:
			return false
		}
		if n > maxDepth {
			return true
		}
	}
	return false
}

// indexLines maps JSON paths to lines relative to the text's first. It returns an empty map for text that does not parse.
func indexLines(text []byte) (lines map[string]int) {
	lines = map[string]int{}
	defer func() { _ = recover() }()
	var root yaml3.Node
	if err := yaml3.Unmarshal(text, &root); err != nil || len(root.Content) == 0 {
		return lines
	}
	budget := maxIndex
	var walk func(n *yaml3.Node, path string, depth int)
	walk = func(n *yaml3.Node, path string, depth int) {
		if budget -= len(path) + 64; budget < 0 || depth > maxDepth || len(path) > maxPath {
			return
		}
		switch n.Kind {
		case yaml3.MappingNode:
			for i := 0; i+1 < len(n.Content); i += 2 {
				child := Field(path, n.Content[i].Value)
				lines[child] = n.Content[i].Line
				walk(n.Content[i+1], child, depth+1)
			}
		case yaml3.SequenceNode:
			for i, c := range n.Content {
				child := path + "[" + strconv.Itoa(i) + "]"
				lines[child] = c.Line
				walk(c, child, depth+1)
			}
		}
	}
	walk(root.Content[0], "", 0)
	return lines
}

var plainField = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Field appends a member to a JSON path: "spec.http", or `headers["x-user"]` where the name is no identifier. A path
// that is long already stays as it is, and a long name is cut.
func Field(path, name string) string {
	if len(path) > maxPath {
		return path
	}
	name = object.Cut(name, maxPath)
	if !plainField.MatchString(name) {
		return path + "[" + strconv.Quote(name) + "]"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}
