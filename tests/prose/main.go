// Command prose holds prose at 120 columns and Go code at 140. It reads the files named as arguments (Markdown, Go,
// proto; others are ignored), prints each line that is too long, and exits with 1 if there is one. `make lint` calls
// it.
//
// Prose is the text of a Markdown file outside tables and fenced code, and a comment that stands on lines of its own.
// Not checked: generated files, Go and nolint directives, preformatted lines of comments, and a line that has no
// space to break it at before column 120, such as a long URL or link.
//
// Code is every other line of a Go file, with a tab as one column and gofmt's alignment as one. Not checked: generated
// files, directives, and a line of which column 141 is in a comment, a raw string, or a string without a space to
// divide it at.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

const columns, tabWidth, codeColumns = 120, 4, 140

func main() {
	failed := false
	for _, path := range os.Args[1:] {
		text, err := os.ReadFile(path)
		if os.IsNotExist(err) {
			continue // removed, but still in git's index
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "prose:", err)
			os.Exit(2)
		}
		for _, line := range tooLong(path, string(text)) {
			failed = true
			fmt.Printf("%s:%d: prose of more than %d columns\n", path, line, columns)
		}
		if filepath.Ext(path) != ".go" {
			continue
		}
		for _, line := range codeTooLong(path, string(text)) {
			failed = true
			fmt.Printf("%s:%d: code of more than %d columns\n", path, line, codeColumns)
		}
	}
	if failed {
		os.Exit(1)
	}
}

// tooLong returns the numbers of the lines of a file whose prose does not end at column 120.
func tooLong(path, text string) []int {
	lines := strings.Split(text, "\n")
	prose := func(int) bool { return false }
	switch filepath.Ext(path) {
	case ".md":
		prose = markdown(lines)
	case ".go":
		prose = goComments(path, text, lines)
	case ".proto":
		prose = func(i int) bool { return comment(lines[i]) }
	}
	var numbers []int
	for i, line := range lines {
		if prose(i) && width(line) > columns && breakable(line) {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}

// codeTooLong returns the numbers of the lines of a Go file whose code does not end at column 140.
func codeTooLong(path, text string) []int {
	files := token.NewFileSet()
	syntax, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(syntax) {
		return nil
	}
	// whole has the bytes that nothing can be broken at: raw strings, strings of one word, comments.
	whole := make([]bool, len(text)+1)
	keep := func(from, to int) {
		for i := from; i < to; i++ {
			whole[i] = true
		}
	}
	ast.Inspect(syntax, func(n ast.Node) bool {
		if s, ok := n.(*ast.BasicLit); ok && s.Kind == token.STRING && (s.Value[0] == '`' || !strings.Contains(s.Value, " ")) {
			keep(files.Position(s.Pos()).Offset, files.Position(s.End()).Offset)
		}
		return true
	})
	for _, group := range syntax.Comments {
		keep(files.Position(group.Pos()).Offset, files.Position(group.End()).Offset)
	}
	var numbers []int
	begin, number := 0, 0
	for line := range strings.Lines(text) {
		number++
		column, last := 0, ' '
		for i, r := range strings.TrimSuffix(line, "\n") {
			if r != ' ' || last != ' ' || whole[begin+i] {
				column++
			}
			if last = r; column > codeColumns {
				if !whole[begin+i] {
					numbers = append(numbers, number)
				}
				break
			}
		}
		begin += len(line)
	}
	return numbers
}

// generatedPage matches the beginning of a page that says which command generates it.
var generatedPage = regexp.MustCompile("(?is)(generated|written|made) (from|by) .*(`make golden`| -update`)")

// markdown tells which lines of a page are prose.
func markdown(lines []string) func(int) bool {
	if generatedPage.MatchString(strings.Join(lines[:min(len(lines), 6)], " ")) {
		return func(int) bool { return false }
	}
	prose := make([]bool, len(lines))
	fence := ""
	for i, line := range lines {
		line = strings.TrimSpace(line)
		switch {
		case fence != "":
			if strings.HasPrefix(line, fence) {
				fence = ""
			}
		case strings.HasPrefix(line, "```"), strings.HasPrefix(line, "~~~"):
			fence = line[:3]
		default:
			prose[i] = !strings.HasPrefix(line, "|")
		}
	}
	return func(i int) bool { return prose[i] }
}

// goComments tells which lines of a Go file are comments. A file that does not parse has none: the compiler tells.
func goComments(path, text string, lines []string) func(int) bool {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil || ast.IsGenerated(file) {
		return func(int) bool { return false }
	}
	inComment := make([]bool, len(lines)+1)
	for _, group := range file.Comments {
		for _, c := range group.List {
			for n := files.Position(c.Pos()).Line; n <= files.Position(c.End()).Line; n++ {
				inComment[n-1] = true
			}
		}
	}
	return func(i int) bool {
		return inComment[i] && (comment(lines[i]) || !strings.Contains(lines[i], "//") && !strings.Contains(lines[i], "/*"))
	}
}

var directive = regexp.MustCompile(`^//(go:|nolint|[\t])`)

// comment tells whether a line holds a comment alone, which is neither a directive nor preformatted text.
func comment(line string) bool {
	line = strings.TrimSpace(line)
	return (strings.HasPrefix(line, "//") || strings.HasPrefix(line, "/*")) && !directive.MatchString(line)
}

// marker is what a line begins with before its first word: indentation, comment signs, list marks, block quotes.
var marker = regexp.MustCompile(`^[\s/*>#-]*(\d+\.)?\s*`)

// link matches a Markdown link, which stays on one line.
var link = regexp.MustCompile(`\[[^\]]*\]\([^)]*\)`)

// breakable tells whether a line has a space to break it at, behind its first word and before column 120.
func breakable(line string) bool {
	line = link.ReplaceAllStringFunc(line, func(s string) string { return strings.ReplaceAll(s, " ", "_") })
	rest := marker.ReplaceAllString(line, "")
	space := strings.IndexByte(rest, ' ')
	return space >= 0 && width(strings.TrimSuffix(line, rest)+rest[:space]) <= columns
}

func width(line string) int {
	return utf8.RuneCountInString(strings.ReplaceAll(line, "\t", strings.Repeat(" ", tabWidth)))
}
