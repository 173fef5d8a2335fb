package caller

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"fairlead.dev/tests/scenarios/internal/echo"
)

var errLine = errors.New("the answer is not the application's")

// line speaks the line protocol: one line there, one back.
func (w *worker) line(l *link, t *target, result *Result) {
	result.Sent += "connect to " + l.remote + "\n"
	err := w.lines(l, t, result)
	if err != nil {
		result.fail(talking, err)
	}
	w.done(l, err == nil)
}

func (w *worker) lines(l *link, t *target, result *Result) error {
	raw, err := json.Marshal(echo.Line{Call: result.ID, Path: t.path, Body: w.call.Body})
	if err != nil {
		return err
	}
	if w.call.ServerFirst && !l.used {
		greeting, err := l.reader.ReadBytes('\n')
		if err != nil {
			return fmt.Errorf("%w: the server did not speak first: %w", errNoAnswer, err)
		}
		result.answer(greeting)
	}
	result.Sent += string(raw) + "\n"
	if _, err := l.Write(append(raw, '\n')); err != nil {
		return fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	for {
		answer, err := l.reader.ReadBytes('\n')
		if err != nil {
			if len(answer) > 0 {
				result.Body = answer
				return fmt.Errorf("%w: %q", errLine, answer[:min(len(answer), 200)])
			}
			return fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		result.answer(answer)
		if result.Seen == nil {
			return fmt.Errorf("%w: %q", errLine, answer[:min(len(answer), 200)])
		}
		if !result.Seen.Greeting {
			if result.Status == 0 {
				result.Status = result.Seen.Status
			}
			return nil
		}
	}
}

func (r *Result) answer(raw []byte) {
	r.Body, r.BodyLength = bytes.TrimSuffix(raw, []byte("\n")), int64(len(raw)-1)
	if r.Seen = echo.Decode(r.Body); r.Seen != nil && r.Header == nil {
		r.Header = http.Header{}
	}
}
