// Package logview reads the logs of a mesh's processes for `fairlead logs`: Open takes the files, Reader.Read merges
// their lines by time, filtered by level and age, and Reader.Follow goes on with new lines.
package logview

import (
	"bytes"
	"encoding/json"
	"strings"
	"time"

	"fairlead.dev/services/installer/internal/local/supervise"
)

// Line is a line of a log, without its newline.
type Line struct {
	// Source is the name of its log.
	Source string
	Text   string
	// At is the time in the line, or that of the line before it; zero if neither has one.
	At time.Time
	// Level is the level in the line, or that of the line before it.
	Level Level
}

// Level of a line.
type Level int

// Levels, the most verbose first.
const (
	Debug Level = iota - 1
	Info
	Warn
	Error
)

// LevelNames are the values of --level; ParseLevel accepts more spellings.
var LevelNames = []string{"debug", "info", "warn", "error"}

// levels are the spellings of Fairlead's services, of Envoy and of common logging libraries.
var levels = map[string]Level{
	"trace": Debug, "debug": Debug, "info": Info, "notice": Info, "warn": Warn, "warning": Warn, "error": Error, "critical": Error,
	"fatal": Error,
}

// ParseLevel parses a level in any of these spellings.
func ParseLevel(text string) (Level, bool) {
	l, ok := levels[strings.ToLower(text)]
	return l, ok
}

// envoyTime is the time in Envoy's lines: [2026-01-02 15:04:05.000][thread][level][logger]. It is UTC.
const envoyTime = "2006-01-02 15:04:05.000"

// parse finds time and level in a line: a JSON object, as slog, zap and others write it, or a line of Envoy. timed and
// levelled say which of them it has.
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

// cutStamp cuts the time off that package supervise puts before each line of an application; zero if there is none.
func cutStamp(text []byte) (time.Time, []byte) {
	if len(text) <= len(supervise.StampFormat) || text[len(supervise.StampFormat)] != ' ' {
		return time.Time{}, text
	}
	at, err := time.Parse(supervise.StampFormat, string(text[:len(supervise.StampFormat)]))
	if err != nil {
		return time.Time{}, text
	}
	return at, text[len(supervise.StampFormat)+1:]
}
