// Package table formats rows of text in columns, for the tables of the command line and of `fairlead up`.
package table

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Table is rows under a header.
type Table struct {
	Header []string
	Rows   [][]string
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// gap between columns.
const gap = "   "

// Lines formats the table, a line for each row. An empty cell is shown as "-". No line ends with blanks.
func (t *Table) Lines() []string {
	widths := make([]int, len(t.Header))
	rows := append([][]string{t.Header}, t.Rows...)
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(show(cell)))
		}
	}
	lines := make([]string, 0, len(rows))
	for _, row := range rows {
		var b strings.Builder
		for i, cell := range row {
			cell = show(cell)
			b.WriteString(cell)
			if i+1 < len(row) {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)) + gap)
			}
		}
		lines = append(lines, b.String())
	}
	return lines
}

// show makes a cell one line.
func show(cell string) string {
	if cell == "" {
		return "-"
	}
	return strings.Join(strings.Fields(cell), " ")
}

// Write prints the table.
func (t *Table) Write(w io.Writer) error {
	_, err := io.WriteString(w, strings.Join(t.Lines(), "\n")+"\n")
	return err
}
