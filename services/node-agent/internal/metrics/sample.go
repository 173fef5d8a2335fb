package metrics

import (
	"bytes"
	"strconv"
	"unicode/utf8"
)

// sample is a line of an exposition that has a value. Its parts are slices of the line.
type sample struct {
	name   []byte
	labels []byte // with braces, or empty
	value  []byte
	time   []byte // milliseconds in text, seconds in OpenMetrics; or empty
	// exemplar is that of OpenMetrics, from the # on; or empty.
	exemplar []byte
}

// parse reads a sample of a format; ok is false if a scraper would refuse the line.
func parse(line []byte, f format) (s sample, ok bool) {
	if !utf8.Valid(line) {
		return s, false
	}
	n := nameLength(line, true)
	if n == 0 {
		return s, false
	}
	s.name, line = line[:n], line[n:]
	line = bytes.TrimLeft(line, " \t")
	if len(line) > 0 && line[0] == '{' {
		end := labelsEnd(line, f)
		if end < 0 {
			return s, false
		}
		s.labels, line = line[:end], line[end:]
	}
	if f == openMetrics {
		if i := bytes.Index(line, []byte(" # ")); i >= 0 {
			s.exemplar, line = line[i+1:], line[:i]
			if !validExemplar(s.exemplar) {
				return s, false
			}
		}
	}
	fields := bytes.FieldsFunc(line, blank)
	if len(fields) == 0 || len(fields) > 2 || !number(fields[0]) {
		return s, false
	}
	s.value = fields[0]
	if len(fields) == 2 {
		s.time = fields[1]
		if _, err := strconv.ParseInt(string(s.time), 10, 64); f == text && err != nil || f == openMetrics && !number(s.time) {
			return s, false
		}
	}
	return s, true
}

// maxExemplar bounds the labels of an exemplar, as OpenMetrics does (in characters; here in bytes, with syntax).
const maxExemplar = 1024

func validExemplar(e []byte) bool {
	e = bytes.TrimPrefix(e, []byte("# "))
	if len(e) > maxExemplar || len(e) == 0 || e[0] != '{' {
		return false
	}
	end := labelsEnd(e, openMetrics)
	if end < 0 {
		return false
	}
	fields := bytes.FieldsFunc(e[end:], blank)
	return (len(fields) == 1 || len(fields) == 2 && number(fields[1])) && number(fields[0])
}

// number reports whether a scraper reads the text as a number.
func number(text []byte) bool {
	if bytes.ContainsAny(text, "_pPxX") { // forms of Go's alone
		return false
	}
	_, err := strconv.ParseFloat(string(text), 64)
	return err == nil
}

// nameLength is the length of the metric's or label's name that the text begins with.
func nameLength(text []byte, metric bool) int {
	for i, c := range text {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c == ':' && metric, c >= '0' && c <= '9' && i > 0:
		default:
			return i
		}
	}
	return len(text)
}

// labelsEnd is the length of {name="value",...}; -1 if that is malformed. Only text allows blanks and a last comma.
func labelsEnd(line []byte, f format) int {
	i := 1
	blanks := func() {
		for f == text && i < len(line) && (line[i] == ' ' || line[i] == '\t') {
			i++
		}
	}
	at := func(c byte) bool { return i < len(line) && line[i] == c }
	for first := true; ; first = false {
		blanks()
		if at('}') && (first || f == text) {
			return i + 1
		}
		n := nameLength(line[i:], false)
		if n == 0 {
			return -1
		}
		i += n
		blanks()
		if !at('=') {
			return -1
		}
		i++
		blanks()
		if !at('"') {
			return -1
		}
		for i++; !at('"'); i++ {
			if at('\\') {
				i++
				if i < len(line) && line[i] != '\\' && line[i] != 'n' && line[i] != '"' {
					return -1
				}
			}
			if i >= len(line) {
				return -1
			}
		}
		i++
		blanks()
		switch {
		case at('}'):
			return i + 1
		case !at(','):
			return -1
		}
		i++
	}
}

// millis and seconds convert the timestamps of samples.
func millis(seconds []byte) []byte {
	s, _ := strconv.ParseFloat(string(seconds), 64) // parse has checked it
	return strconv.AppendInt(nil, int64(s*1000), 10)
}

func seconds(millis []byte) []byte {
	ms, _ := strconv.ParseInt(string(millis), 10, 64) // parse has checked it
	return strconv.AppendFloat(nil, float64(ms)/1000, 'f', 3, 64)
}

// blank are the separators of a line.
func blank(r rune) bool { return r == ' ' || r == '\t' }
