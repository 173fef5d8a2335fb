// Package logview reads the log files of a mesh's processes: several as one, by time, by level, and as they grow.
package logview

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"
)

// Line is a line of a log, without its end.
type Line struct {
	// Source says whose it is.
	Source string
	Text   string
	// At is when it was written: what the line says, or else the line before it; zero if neither does.
	At time.Time
	// Level orders levels; a line that says none has that of the line before it.
	Level Level
}

// Level of a line.
type Level int

// Levels, from the one that says most.
const (
	Debug Level = iota - 1
	Info
	Warn
	Error
)

// LevelNames are the levels that --level offers; ParseLevel knows more spellings.
var LevelNames = []string{"debug", "info", "warn", "error"}

// levels are the spellings of our services, of Envoy and of programs whose logs look like theirs.
var levels = map[string]Level{
	"trace": Debug, "debug": Debug, "info": Info, "notice": Info, "warn": Warn, "warning": Warn, "error": Error, "critical": Error, "fatal": Error,
}

// ParseLevel reads a level.
func ParseLevel(text string) (Level, bool) {
	l, ok := levels[strings.ToLower(text)]
	return l, ok
}

// envoyTime is how Envoy's lines begin: [2026-01-02 15:04:05.000][thread][level][logger]. The time is UTC.
const envoyTime = "2006-01-02 15:04:05.000"

// parse takes time and level out of a line: of JSON, as slog, zap and the like write it, or of Envoy's form.
func parse(text []byte) (at time.Time, level Level, timed, levelled bool) {
	switch {
	case bytes.HasPrefix(text, []byte("{")):
		var fields struct {
			Time      string
			Timestamp string
			TS        string
			Level     string
			Severity  string
		}
		if json.Unmarshal(text, &fields) != nil {
			return at, 0, false, false
		}
		for _, value := range []string{fields.Time, fields.Timestamp, fields.TS} {
			if t, err := time.Parse(time.RFC3339Nano, value); err == nil {
				at, timed = t, true
				break
			}
		}
		if level, levelled = ParseLevel(fields.Level); !levelled {
			level, levelled = ParseLevel(fields.Severity)
		}
	case bytes.HasPrefix(text, []byte("[")):
		parts := bytes.SplitN(text, []byte("]["), 4)
		if len(parts) < 3 {
			return at, 0, false, false
		}
		if t, err := time.Parse(envoyTime, string(parts[0][1:])); err == nil {
			at, timed = t, true
		}
		level, levelled = ParseLevel(string(parts[2]))
	}
	return at, level, timed, levelled
}
