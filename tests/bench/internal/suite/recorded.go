package suite

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// How far a row may be from the table of docs/performance.md before the table no longer describes the program. The
// bounds are for two cores that do other work at the same time:
const (
	// bytesAbove and bytesBelow are for bytes that proxies receive. They are the same in every run but for numbers of
	// varying length; on a busy machine those of one event among five or ten may come after they were counted.
	bytesAbove, bytesBelow = 0.05, 0.3
	// memoryAbove is for memory, which differs with when the garbage collector has run.
	memoryAbove = 1.25
	// ratioAbove is for CPU as a multiple of the floor's. Both are measured one after the other, and in one run of five
	// something else disturbs one of them: of seven builds, each measured twice, the higher multiple of a row was up to
	// 1.8 times the lower. So a group with a row above the bound is measured again, and only what is above it each time
	// has moved.
	ratioAbove = 1.5
	// attempts bounds how often a group is measured.
	attempts = 3
	// shortestFloor is the CPU in ms of the shortest floor whose multiples are compared: the system counts in steps
	// that weigh too much in a shorter one.
	shortestFloor = 5
)

// ErrMoved means that rows differ from those of the page beyond noise.
var ErrMoved = errors.New("rows are not as the page says")

// rewrite is the command that makes the table anew.
const rewrite = "make bench-full"

// measured are those parts of a row's name that are measured themselves.
var measured = regexp.MustCompile(` \(.*?\)| [0-9.]+ [KMG]?i?B\b`)

// rowName is a row's name without what is measured.
func rowName(what string) string { return measured.ReplaceAllString(what, "") }

// readPage reads the table between its markers in a page, by the names of its rows.
func readPage(path, name string) (map[string]line, error) {
	beginMarker, endMarker := markers(name)
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	_, rest, ok := strings.Cut(string(raw), beginMarker)
	table, _, ok2 := strings.Cut(rest, endMarker)
	if !ok || !ok2 {
		return nil, fmt.Errorf("%s has no %q and %q on lines of their own", path, strings.TrimSpace(beginMarker), strings.TrimSpace(endMarker))
	}
	rows := map[string]line{}
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(row), "|")
		if len(cells) != 9 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		name := rowName(cells[1])
		if _, twice := rows[name]; twice {
			rows[name] = line{} // two groups have the row, of different meshes: it equals everything
			continue
		}
		rows[name] = line{what: cells[1], figure: cells[2], floor: cells[3], ratio: cells[4]}
	}
	return rows, nil
}

// movedRow is a row that is not as the page says.
type movedRow struct {
	name string
	err  error
}

// moved lists what is not as the rows of a page say. Rows that the page does not have, such as those of the short
// form's smaller meshes, are not compared; nor are times from a change to its receipt, which one garbage collection
// decides.
func (t *table) moved(page string, rows map[string]line) []movedRow {
	var found []movedRow
	for _, l := range t.lines {
		was, ok := rows[rowName(l.what)]
		if !ok {
			continue
		}
		if differs(l, was) {
			found = append(found, movedRow{rowName(l.what),
				fmt.Errorf("%s (%s): %s has %s, measured is %s; if the change is worth it, %s writes the table anew",
					l.id, rowName(l.what), page, was.text(), l.text(), rewrite)})
		}
	}
	return found
}

// text is what is compared of a line.
func (l line) text() string {
	if or(l.ratio) == "–" {
		return l.figure
	}
	return l.figure + ", " + l.ratio + " × floor"
}

// differs reports whether a line is not as it was, beyond noise.
func differs(is, was line) bool {
	switch {
	case strings.Contains(is.what, "bytes"):
		now, half, ok := amount(is.figure)
		then, halfThen, ok2 := amount(was.figure)
		rounding := half + halfThen
		return ok && ok2 && (now-then > bytesAbove*then+rounding || then-now > bytesBelow*then+rounding)
	case strings.HasPrefix(is.what, "memory after"):
		return false // what the runtime has given back by then differs by more than half; the peak is compared
	case strings.Contains(is.what, "memory"):
		now, _, ok := amount(is.figure)
		then, _, ok2 := amount(was.figure)
		return ok && ok2 && now > memoryAbove*then
	case strings.HasSuffix(is.what, ": CPU"):
		now, err := strconv.ParseFloat(is.ratio, 64)
		then, err2 := strconv.ParseFloat(was.ratio, 64)
		return err == nil && err2 == nil && longEnough(is.floor) && longEnough(was.floor) && now > ratioAbove*then
	default:
		return false
	}
}

// amount reads what size has written. half is half of the last digit's value, by which rounding moves it.
func amount(figure string) (bytes, half float64, ok bool) {
	number, unit, _ := strings.Cut(figure, " ")
	scale, known := map[string]float64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}[unit]
	n, err := strconv.ParseFloat(number, 64)
	if half = scale / 2; strings.Contains(number, ".") {
		half = scale / 20
	}
	if unit == "B" {
		half = 0
	}
	return n * scale, half, known && err == nil
}

// longEnough reports whether a floor that ms has written is one whose multiples are compared.
func longEnough(floor string) bool {
	number, unit, _ := strings.Cut(floor, " ")
	n, err := strconv.ParseFloat(number, 64)
	return err == nil && (unit == "s" || unit == "ms" && n >= shortestFloor)
}
