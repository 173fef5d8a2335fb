// Package audit records every write through the config API, and every refused one. Recorder makes the entries: the
// store calls Accept before a write takes effect, package storeapi calls Refuse. Log writes them to disk. Each line
// contains the hash of the line before it, so that Verify detects changed and removed lines.
package audit

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"fairlead.dev/pkg/clock"
)

// Bounds of the log.
const (
	// DefaultMaxBytes is the size at which a file is rotated; it holds some 30,000 writes.
	DefaultMaxBytes = 16 << 20
	// DefaultKeep is the number of rotated files: 144 MiB with the current one, some 270,000 writes.
	DefaultKeep = 8
	// refusedMaxBytes and refusedKeep bound the file of refusals, whose name ends with refusedSuffix: 8 MiB. At least
	// 800 lines follow a line before it is removed.
	refusedMaxBytes = 4 << 20
	refusedKeep     = 1
	// maxObjects bounds the objects of one line; a larger Apply gets several lines.
	maxObjects = 200
	// reserveBytes of disk are reserved for the lines of some 500 deletions, so that users can delete objects when the
	// disk is full.
	reserveBytes = 256 << 10
)

// refusedSuffix ends the name of the file of refusals. They have a file and a chain of their own, so that they never
// displace the lines of accepted writes.
const refusedSuffix = ".refused"

// ErrUnwritable means that a line could not be written; its write must not take effect.
var ErrUnwritable = errors.New("the audit log cannot be written, and nothing is changed without it")

// ErrNoFile means that there is no audit file: lines go only to the process's log.
var ErrNoFile = errors.New("audit lines go to config-watcher's log alone; set --audit-log or --store-dir to keep them")

// Results of a call.
const (
	// Accepted calls took effect after the line was written, unless a Failed line follows.
	Accepted = "accepted"
	// Refused calls have changed nothing.
	Refused = "refused"
	// Failed calls were accepted but could not be stored.
	Failed = "failed"
)

// Entry is one line.
type Entry struct {
	// Sequence is the number of the line. Lines of refusals have their own numbers.
	Sequence uint64    `json:"seq"`
	Time     time.Time `json:"time"`
	// Identity is the caller, verified by Method. Address is the remote address, which is not verified.
	Identity string `json:"identity"`
	Method   string `json:"method,omitempty"`
	Address  string `json:"address,omitempty"`
	// Call is the method of the API.
	Call   string `json:"call"`
	Result string `json:"result"`
	// Code and Reason are the status of a refused or failed call.
	Code   string `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Suppressed is the number of the caller's refusals since its last line that got no line, because they came too
	// fast.
	Suppressed uint64   `json:"suppressed,omitempty"`
	Objects    []Object `json:"objects,omitempty"`
	// More is the number of a refused call's objects that Objects leaves out.
	More int `json:"more,omitempty"`
	// Prev is the hash of the previous line.
	Prev string `json:"prev"`
}

// Object describes the change of one object.
type Object struct {
	// Verb is "create", "update" or "delete", "accept" of a source, or "end access" of a proxy to a Secret, or of
	// routes to a backend.
	Verb      string `json:"verb"`
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Before is nil if the object is created, After if it is deleted.
	Before *State `json:"before,omitempty"`
	After  *State `json:"after,omitempty"`
}

// State identifies the content of an object without disclosing it. A Secret has no hash, because a short value could be
// guessed from it.
type State struct {
	ResourceVersion string `json:"resourceVersion"`
	Hash            string `json:"sha256,omitempty"`
}

// Config of a Log. Log, Registerer and Clock are required.
type Config struct {
	// Path of the file; empty writes to Log only.
	Path string
	// MaxBytes and Keep bound the files; 0 means the default.
	MaxBytes int64
	Keep     int

	Log        *slog.Logger
	Registerer prometheus.Registerer
	Clock      clock.Clock
}

// Log is the audit log. It is safe for concurrent use.
type Log struct {
	cfg             Config
	lines, failures prometheus.Counter

	mu   sync.Mutex
	file *os.File
	size int64
	next uint64
	prev string
	// reserved is true while the reserve file exists.
	reserved bool
	// refused is the log of refusals; nil in that log itself.
	refused *Log
	// room, if not nil, is called before each write and can make it fail like a full disk; for tests.
	room func(bytes int) error
}

// Open opens the log and reads its last line. It removes and logs an incomplete line at the end, whose write was never
// acknowledged.
func Open(cfg Config) (*Log, error) {
	cfg.MaxBytes, cfg.Keep = cmp.Or(cfg.MaxBytes, DefaultMaxBytes), cmp.Or(cfg.Keep, DefaultKeep)
	f := promauto.With(cfg.Registerer)
	l := &Log{
		cfg: cfg, next: 1,
		lines: f.NewCounter(prometheus.CounterOpts{Name: "fairlead_config_watcher_audit_lines_total", Help: "Lines of the audit log written."}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_config_watcher_audit_failures_total", Help: "Lines of the audit log that could not be written; the writes were refused.",
		}),
	}
	of := cfg
	of.MaxBytes, of.Keep = refusedMaxBytes, refusedKeep
	if cfg.Path != "" {
		of.Path += refusedSuffix
	}
	l.refused = &Log{cfg: of, next: 1, lines: l.lines, failures: l.failures}
	if cfg.Path == "" {
		return l, nil
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Path), 0o700); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	if err := l.open(); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	if err := l.refused.open(); err != nil {
		return nil, fmt.Errorf("audit log: %w", errors.Join(err, l.Close()))
	}
	l.reserve()
	return l, nil
}

// open opens the newest file. It continues the chain from the last line, or from the file before if the newest one is
// empty.
func (l *Log) open() error {
	file, err := os.OpenFile(l.cfg.Path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	whole := bytes.LastIndexByte(content, '\n') + 1
	if cut := len(content) - whole; cut > 0 {
		l.cfg.Log.Warn("part of a line at the end of the audit log was never acknowledged and is removed", "path", l.cfg.Path, "bytes", cut)
		if err := file.Truncate(int64(whole)); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	if content = content[:whole]; whole == 0 && l.prev == "" { // otherwise the chain is known
		content, _ = os.ReadFile(rotated(l.cfg.Path, 1)) // no file before the first rotation
	}
	if last := lastLine(content); last != nil {
		e, hash, err := parse(last)
		if err != nil {
			// The damaged line stays in the file for Verify to report.
			l.cfg.Log.Error("the audit log is damaged at its end", "path", l.cfg.Path, "error", err)
		}
		l.next, l.prev = e.Sequence+1, hash
	}
	l.file, l.size = file, int64(whole)
	return nil
}

func lastLine(content []byte) []byte {
	content = bytes.TrimSuffix(content, []byte("\n"))
	if last := content[bytes.LastIndexByte(content, '\n')+1:]; len(last) > 0 {
		return last
	}
	return nil
}

// parse parses "<hash> <json>" and checks the hash.
func parse(line []byte) (e Entry, hash string, err error) {
	sum, text, ok := bytes.Cut(line, []byte(" "))
	if !ok {
		return e, "", errors.New("no line of an audit log")
	}
	if err := json.Unmarshal(text, &e); err != nil {
		return e, string(sum), err
	}
	if hash := hashOf(text); hash != string(sum) {
		return e, string(sum), errors.New("the line is not what its hash says")
	}
	return e, string(sum), nil
}

func hashOf(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Append writes entries and sets their Sequence, Time and Prev. If it returns nil all lines are on disk, otherwise none
// is.
func (l *Log) Append(entries ...Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil && l.size > 0 && l.size >= l.cfg.MaxBytes {
		l.rotate()
	}
	var text bytes.Buffer
	next, prev := l.next, l.prev
	var logged []func()
	deletes := true
	for _, e := range split(entries) {
		e.Sequence, e.Time, e.Prev = next, l.cfg.Clock.Now().UTC(), prev
		line, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrUnwritable, err)
		}
		next, prev = next+1, hashOf(line)
		fmt.Fprintf(&text, "%s %s\n", prev, line)
		for _, o := range e.Objects {
			deletes = deletes && o.Verb == "delete"
		}
		hash := prev
		logged = append(logged, func() {
			l.cfg.Log.Info("audit", "seq", e.Sequence, "identity", e.Identity, "method", e.Method, "address", e.Address, "call", e.Call, "result",
				e.Result,
				"code", e.Code, "objects", names(e.Objects), "more", e.More, "hash", hash)
		})
	}
	err := l.write(text.Bytes())
	if err != nil && deletes && os.Remove(l.reservePath()) == nil {
		l.reserved = false
		err = l.write(text.Bytes())
	} else if err == nil && !l.reserved && !deletes {
		l.reserve() // an earlier deletion has used the reserve, and there is room again
	}
	if err != nil {
		l.failures.Inc()
		if l.refused == nil {
			l.cfg.Log.Error("a refused write cannot be recorded in the audit log", "path", l.cfg.Path, "error", err)
		} else {
			l.cfg.Log.Error("audit log cannot be written: writes are refused", "path", l.cfg.Path, "error", err)
		}
		return fmt.Errorf("%w: %w", ErrUnwritable, err)
	}
	l.next, l.prev = next, prev
	for _, log := range logged {
		l.lines.Inc()
		log()
	}
	return nil
}

// split splits entries with more than maxObjects objects.
func split(entries []Entry) []Entry {
	var out []Entry
	for _, e := range entries {
		for len(e.Objects) > maxObjects {
			part := e
			part.Objects, e.Objects = e.Objects[:maxObjects], e.Objects[maxObjects:]
			out = append(out, part)
		}
		out = append(out, e)
	}
	return out
}

// names returns the first objects as text, for the process's log.
func names(objects []Object) []string {
	const most = 10
	var out []string
	for _, o := range objects[:min(len(objects), most)] {
		out = append(out, fmt.Sprintf("%s %s %s/%s", o.Verb, o.Kind, o.Namespace, o.Name))
	}
	if more := len(objects) - most; more > 0 {
		out = append(out, fmt.Sprintf("and %d more", more))
	}
	return out
}

// write appends text to the file and syncs it. After an error it truncates the file to its former size.
func (l *Log) write(text []byte) error {
	if l.cfg.Path == "" {
		return nil
	}
	if l.file == nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	var err error
	if l.room != nil {
		err = l.room(len(text))
	}
	if err == nil {
		_, err = l.file.WriteAt(text, l.size)
	}
	if err == nil {
		err = l.file.Sync()
	}
	if err != nil {
		return errors.Join(err, l.file.Truncate(l.size))
	}
	l.size += int64(len(text))
	return nil
}

func rotated(path string, n int) string { return fmt.Sprintf("%s.%d", path, n) }

// rotate begins a new file in place of the open one, and keeps the old one as the first of the rotated ones; the oldest
// of a full row is overwritten. The new file is open before anything is renamed. If a step fails the current file grows
// beyond MaxBytes, so that no line is lost, and a later attempt fills the gap that this one may have left in the row.
func (l *Log) rotate() {
	if err := l.beginFile(); err != nil {
		l.cfg.Log.Warn("audit log cannot be rotated", "path", l.cfg.Path, "error", err)
		return
	}
	l.reserve()
}

func (l *Log) beginFile() error {
	begun := l.cfg.Path + ".next"
	file, err := os.OpenFile(begun, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if err := l.shift(); err != nil {
		return errors.Join(err, file.Close(), os.Remove(begun))
	}
	if err := os.Rename(begun, l.cfg.Path); err != nil {
		return errors.Join(err, os.Rename(rotated(l.cfg.Path, 1), l.cfg.Path), file.Close(), os.Remove(begun))
	}
	old := l.file
	l.file, l.size = file, 0
	return old.Close()
}

// shift renames the current file and those before it, up to the first gap in the row.
func (l *Log) shift() error {
	end := 1
	for end < l.cfg.Keep {
		if _, err := os.Lstat(rotated(l.cfg.Path, end)); errors.Is(err, fs.ErrNotExist) {
			break
		}
		end++
	}
	for n := end; n > 0; n-- {
		if err := os.Rename(l.fileAt(n-1), l.fileAt(n)); err != nil {
			return err
		}
	}
	return nil
}

func (l *Log) reservePath() string { return l.cfg.Path + ".reserve" }

// reserve writes the reserve file, which Append removes when the disk is full and a deletion must be recorded. Without
// the file deletions fail like other writes when the disk is full.
func (l *Log) reserve() {
	if l.cfg.Path == "" || l.refused == nil {
		return // a refusal changes nothing
	}
	l.reserved = true
	if err := os.WriteFile(l.reservePath(), bytes.Repeat([]byte{'.'}, reserveBytes), 0o600); err != nil {
		l.reserved = false
		l.cfg.Log.Warn("no room can be reserved for the audit log", "path", l.reservePath(), "error", err)
	}
}

// Close closes the files.
func (l *Log) Close() error {
	if l.refused == nil {
		return l.closeFile()
	}
	return errors.Join(l.closeFile(), l.refused.closeFile())
}

func (l *Log) closeFile() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
