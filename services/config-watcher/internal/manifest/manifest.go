// Package manifest decodes YAML or JSON into generic object trees and remembers the line of each field. Sources call
// Each (or Parse) with the content of one file and pass each Document to package validate; Fragments finds the
// documents that do not decode.
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

// Limits before decoding. A document above them, or above those of package yamltext, is refused without being read.
const (
	// MaxFileBytes holds MaxDocuments ordinary objects. A file is in memory as a whole while it is read.
	MaxFileBytes     = 64 << 20
	MaxDocumentBytes = yamltext.MaxBytes
	// MaxDocuments bounds the documents of one file, and with them its problems.
	MaxDocuments = 100_000
	// maxDepth bounds nesting, because parsers recurse. No kind nests deeper than a few dozen levels.
	maxDepth = 200
	// maxPath bounds the path of a field, which repeats the names of all members above it. Deeper fields get the line
	// of their ancestor.
	maxPath = 1 << 10
	// maxIndex bounds the memory of one document's paths in bytes. Fields beyond it get the line of their ancestor.
	maxIndex = 16 << 20
)

// Document is one object of a file, decoded into a generic tree.
type Document struct {
	// File is the name given to Parse.
	File string
	// Line is the 1-based line in File where the document's content starts.
	Line int
	// Tree is the object: map[string]any, []any, string, bool, int64, float64, nil.
	Tree map[string]any

	json []byte
	text []byte
	// first is the line of text in File: the List's line for an item of a List, Line otherwise.
	first int
	// prefix is the path of the object within its document, set for items of a List.
	prefix string
	lines  map[string]int
}

// JSON returns the document's object as JSON on one line. It is made at the first call: later changes of Tree are
// not in it.
func (d *Document) JSON() (js []byte, err error) {
	if d.json == nil {
		d.json, err = AppendJSON(nil, d.Tree)
	}
	return d.json, err
}

// Location is "file:line" of the document; empty without a file name.
func (d *Document) Location() string { return locate(d.File, d.Line) }

// FieldLocation is "file:line" of the field at the JSON path ("spec.http[0].route"), or of its nearest ancestor in the
// text.
func (d *Document) FieldLocation(path string) string { return locate(d.File, d.line(path)) }

// line returns the line of the field at a path, or of its nearest ancestor in the text.
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

// index maps the JSON paths of the text to its lines. The items of a List share one index.
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

// Parse is Each for content with few documents: it returns all of them.
func Parse(file string, content []byte) ([]*Document, object.Problems) {
	var docs []*Document
	problems := Each(file, content, func(d *Document) { docs = append(docs, d) })
	return docs, problems
}

// Each divides content at "---" lines and calls do with one document after the other, so that only one of them is in
// memory at a time. It skips empty documents, passes on the items of a List in its place, and goes on after a document
// that does not decode. It never panics, whatever the content.
func Each(file string, content []byte, do func(*Document)) object.Problems {
	if len(content) > MaxFileBytes {
		return object.Problems{{Location: file, Reason: fmt.Sprintf("file has more than %d bytes", MaxFileBytes),
			Remedy: "divide it into several files"}}
	}
	var problems object.Problems
	count, known := 0, texts{}
	for part := range split(content) {
		if count++; count > MaxDocuments {
			return append(problems, object.Problem{Location: locate(file, part.line), Reason: fmt.Sprintf("more than %d documents", MaxDocuments),
				Remedy: "divide the file"})
		}
		got, p := decode(file, part, known)
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

// Fragments returns the documents of content that do not decode and whose text matches. Content above MaxFileBytes is
// one fragment, and so is each document beyond MaxDocuments.
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
		if docs, problem := decode(file, p, texts{}); problem != nil && len(docs) == 0 {
			out = append(out, Fragment{File: file, Line: p.line, Text: p.text})
		}
	}
	return out
}

// Empty reports whether content has no document: nothing but blanks, comments and dividers.
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

// split cuts content at lines that start with "---" and drops parts that hold nothing but comments.
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

// decode decodes one part of a file; known are texts of the parts before.
func decode(file string, p part, known texts) ([]*Document, *object.Problem) {
	// A document begins at its first line that is neither blank nor a comment: editors jump there.
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
	if over, ok := errors.AsType[*yamltext.Error](yamltext.Check(text)); ok {
		return nil, &object.Problem{Location: locate(file, line+over.Line-1), Reason: object.Cut(over.Reason, 300), Remedy: over.Remedy}
	}
	if tooDeep(text) {
		return nil, &object.Problem{Location: locate(file, line), Reason: fmt.Sprintf("document nests deeper than %d levels", maxDepth),
			Remedy: "flatten it; no kind needs that"}
	}
	if tree, ok := decodeBlock(text, known); ok {
		return items(&Document{File: file, Line: line, Tree: tree, text: text, first: line})
	}
	tree, err := toTree(text)
	if err != nil {
		at, reason := yamlError(line, err)
		return nil, &object.Problem{Location: locate(file, at), Reason: "not valid YAML: " + reason,
			Remedy: yamltext.Unreadable(text, err).Remedy + "; nothing of this document was taken over"}
	}
	if tree == nil {
		return nil, nil
	}
	m, ok := tree.(map[string]any)
	if !ok {
		return nil, &object.Problem{Location: locate(file, line), Reason: "document is no object",
			Remedy: "start it with apiVersion, kind and metadata"}
	}
	return items(&Document{File: file, Line: line, Tree: m, text: text, first: line})
}

// toTree decodes YAML or JSON and refuses duplicate keys. Numbers become int64 or float64 as in Kubernetes.
func toTree(text []byte) (tree any, err error) {
	defer func() {
		// The YAML decoder panics with its own types on some malformed input.
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
	return tree, kjson.Unmarshal(js, &tree)
}

// overridesMerged reports whether the only duplicate keys of text are those that override what "<<" merged; the strict
// decoder takes these for duplicates. It is false if a merge follows other keys: the decoder would let the merge win
// over them.
func overridesMerged(text []byte) bool {
	var root yaml3.Node
	return bytes.Contains(text, []byte("<<")) && yaml3.Unmarshal(text, &root) == nil && mergesFirst(&root)
}

// mergesFirst reports whether every mapping has its merge before its keys, and each key once.
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

// yamlError returns the error's line in the file, and its text without it.
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

// tooDeep reports whether brackets outside quotes, or block levels within one line, nest beyond maxDepth. It runs
// before a recursive parser sees the text.
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

// nested reports whether the first line of text opens more than maxDepth block levels.
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

// indexLines maps JSON paths to lines, counted from the first line of text. The map is empty if text does not parse.
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

// Field appends a member to a JSON path: "spec.http", or `headers["x-user"]` if the name is no identifier. A path
// longer than maxPath stays as it is, and a long name is cut.
func Field(path, name string) string {
	if len(path) > maxPath {
		return path
	}
	name = object.Cut(name, maxPath)
	if !identifier(name) {
		return path + "[" + strconv.Quote(name) + "]"
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

// Index appends the place in a list to a JSON path: "spec.http[0]".
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// Items yields the items of the list at path, each with its own path.
func Items[T any](path string, list []T) iter.Seq2[string, T] {
	return func(yield func(string, T) bool) {
		for i, item := range list {
			if !yield(Index(path, i), item) {
				return
			}
		}
	}
}

func identifier(name string) bool {
	for i := range len(name) {
		if c := name[i]; !letter(c) && (i == 0 || !digit(c)) {
			return false
		}
	}
	return name != ""
}
