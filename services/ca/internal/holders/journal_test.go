package holders

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/testkit"
)

func (f *fixture) path() string { return f.journal.path() }

func TestHoldersOutliveTheProcess(t *testing.T) {
	for what, restart := range map[string]func(*fixture){
		"stopped":                    func(f *fixture) { f.stop(); f.open() },
		"killed":                     func(f *fixture) { f.kill() },
		"killed twice":               func(f *fixture) { f.kill(); f.kill() },
		"the machine was restarted":  func(f *fixture) { f.stop(); f.cfg.Boot = "boot-2"; f.open() },
		"issued while it is stopped": func(f *fixture) { f.stop(); f.issue("late", nil); f.cfg.Boot = "boot-2"; f.open() },
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t, nil)
			f.cfg.IssuedBefore = true
			one := f.issue("a", inPod("web-0"))
			f.issue("a", after(one))
			f.issue("b", nil)
			f.issue("c", func(c *Certificate) { c.Generation = 2 })
			restart(f)
			behind := f.Behind(0, 2)
			if strings.HasPrefix(what, "issued") {
				if len(behind) != 3 || !strings.Contains(behind[2].Name, "late") {
					t.Fatalf("what was issued late is not there: %q", names(behind))
				}
				behind = behind[:2]
			}
			if len(behind) != 2 || behind[0].Name != "default/web-0" || !strings.Contains(behind[1].Name, "/sa/b ") {
				t.Errorf("behind %q", names(behind))
			}
			f.Acked(0, 2, []Fingerprint{one.Fingerprint}, nil)
			if got := f.Behind(0, 2); len(got) != len(f.Behind(0, 2)) || slices.Contains(names(got), "default/web-0") {
				t.Errorf("the acknowledgement of an alias: %q", names(got))
			}
			if info, err := os.Stat(f.path()); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("mode %v, %v", info.Mode(), err)
			}
		})
	}
}

func TestWhatAJournalDoesNotSayIsUnknown(t *testing.T) {
	unknown := "unknown certificates until " + start.Add(ttl).Format(time.RFC3339)
	change := func(edit func([]byte) []byte) func(*fixture) {
		return func(f *fixture) {
			text := testkit.Must(os.ReadFile(f.path()))(f.t)
			testkit.WriteFile(f.t, f.path(), edit(slices.Clone(text)))
		}
	}
	for what, c := range map[string]struct {
		damage  func(*fixture)
		unknown bool
	}{
		"nothing":             {func(*fixture) {}, false},
		"no journal":          {func(f *fixture) { testkit.NoError(f.t, os.Remove(f.path())) }, true},
		"an empty one":        {change(func([]byte) []byte { return nil }), true},
		"another file":        {change(func([]byte) []byte { return []byte("something that is no journal") }), true},
		"damaged":             {change(func(b []byte) []byte { b[len(header)+60]++; return b }), true},
		"torn":                {change(func(b []byte) []byte { return b[:len(b)-20] }), false},
		"torn into zeros":     {change(func(b []byte) []byte { clear(b[len(b)-20:]); return b }), false},
		"a crash":             {func(f *fixture) { f.cfg.Boot = "boot-2" }, true},
		"a write that failed": {change(func(b []byte) []byte { b[stateAt] = failedMark; return b }), true},
	} {
		t.Run(what, func(t *testing.T) {
			f := newFixture(t, nil)
			f.issue("a", nil)
			f.issue("b", nil)
			f.cfg.IssuedBefore = true
			c.damage(f)
			for range 2 { // a restart does not forget it
				f.kill()
				if got := names(f.Behind(0, 2)); slices.Contains(got, unknown) != c.unknown {
					t.Errorf("behind %q, want unknown ones %v", got, c.unknown)
				}
				if got := names(f.Of(7)); slices.Contains(got, unknown) != c.unknown {
					t.Errorf("of another signer %q", got)
				}
				if got := f.Counts(0, 2).UnknownUntil; got.IsZero() == c.unknown {
					t.Errorf("unknown until %s", got)
				}
				f.cfg.Boot = "boot-1"
				f.stop()
			}
			f.clock.Advance(ttl)
			f.open()
			if got := f.Behind(0, 2); len(got) != 0 {
				t.Errorf("after a day: %q", names(got))
			}
		})
	}
}

func TestTheFirstStartKnowsEverything(t *testing.T) {
	f := newFixture(t, nil)
	if got := f.Behind(0, 2); len(got) != 0 {
		t.Errorf("%q", names(got))
	}
}

// Certificates are issued while the disk is full. The problem ends when there is room again, and then nothing is
// missing; if the process ends before, the next one knows that something is.
func TestAFullDisk(t *testing.T) {
	var full atomic.Pointer[fileio.Step]
	f := newFixture(t, func(c *Config) {
		c.FS.Fault = func(s fileio.Step, _ string) error {
			if at := full.Load(); at != nil && *at == s {
				return errors.New("no space left on device")
			}
			return nil
		}
	})
	for _, step := range []fileio.Step{fileio.StepWrite, fileio.StepSync} {
		full.Store(&step)
		f.issue("lost", nil)
		f.tick(func() error {
			if err := f.Problem(); err == nil || !strings.Contains(err.Error(), "no space left") {
				return fmt.Errorf("another problem: %w", errors.Join(err, errNone))
			}
			return nil
		})
		f.issue("lost", nil)
		copied := *f
		copied.cfg.FS = fileio.FS{}
		copied.cfg.Dir = t.TempDir()
		testkit.WriteFile(t, copied.cfg.Dir+"/"+journalName, testkit.Must(os.ReadFile(f.path()))(t))
		copied.kill()
		if copied.Counts(0, 0).UnknownUntil.IsZero() {
			t.Errorf("%s: a process that was started meanwhile misses nothing", step)
		}
		copied.stop()
		full.Store(nil)
		f.tick(f.Problem)
	}
	if f.journal.failures != 2 {
		t.Errorf("%d failures, want 2", f.journal.failures)
	}
	f.kill()
	if got := f.Behind(0, 2); len(got) != 4 {
		t.Errorf("behind %q", names(got))
	}
}

// Whoever writes has looked for more, and a record comes before he lets go of the file.
func TestARecordThatComesAtTheEndOfAWriteIsWritten(t *testing.T) {
	f := newFixture(t, nil)
	f.journal.io.Lock()
	f.issue("a", nil)
	f.journal.io.Unlock()
	testkit.Eventually(t, testkit.Patience, func() error {
		found := errNone
		file := journal{dir: f.cfg.Dir}
		_, err := file.read(func(e *event) {
			if e.kind == kindIssued {
				found = nil
			}
		})
		return errors.Join(err, found)
	})
}

var errNone = errors.New("there is none")

// tick lets time pass until ok returns nil.
func (f *fixture) tick(ok func() error) {
	f.t.Helper()
	testkit.Eventually(f.t, testkit.Patience, func() error {
		f.clock.Advance(syncEvery)
		return ok()
	})
}

// A kill at any step of a rewriting leaves a journal with everything.
func TestAKillWhileTheJournalIsRewritten(t *testing.T) {
	for failing := 1; ; failing++ {
		f := newFixture(t, nil)
		for i := range 3 * rewriteChunk {
			f.issued(ptr(f.cert("a", inPod(fmt.Sprint("p", i)))))
		}
		f.issue("a", inPod("last"))
		f.stop()
		steps := 0
		f.journal.fs.Fault = func(fileio.Step, string) error {
			if steps++; steps >= failing {
				return errors.New("killed")
			}
			return nil
		}
		err := f.rewrite()
		done := steps < failing
		if done != (err == nil) {
			t.Fatalf("step %d: %v", failing, err)
		}
		f.kill()
		if got := f.Counts(0, 1); got.Total != 3*rewriteChunk+1 {
			t.Errorf("step %d: %+v", failing, got)
		}
		if done {
			if failing < 5 {
				t.Errorf("only %d steps", failing-1)
			}
			return
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestAJournalIsMadeSmaller(t *testing.T) {
	f := newFixture(t, nil)
	c := f.issue("a", inPod("web-0"))
	for range compactFrom / 100 {
		f.clock.Advance(time.Millisecond)
		f.issued(ptr(f.cert("a", inPod("web-0"))))
	}
	f.issue("a", func(n *Certificate) { inPod("web-0")(n); n.Generation = 2 })
	f.tick(func() error {
		info, err := os.Stat(f.path())
		if err != nil {
			return err
		}
		if info.Size() > 10<<10 {
			return fmt.Errorf("%d bytes", info.Size())
		}
		return nil
	})
	f.kill()
	if got := f.Counts(0, 2); got.Total != 1 || got.Acknowledged != 1 {
		t.Errorf("%+v after %s", got, c.Serial)
	}
}

func FuzzJournal(f *testing.F) {
	c := Certificate{Fingerprint: Fingerprint{1}, Serial: "0a", Identity: "spiffe://a/b", Pod: "a/b", PodUID: "u", Signer: 1, Generation: 2,
		AuthorityKeyID: []byte("k"), NotAfter: start.Add(ttl), At: start}
	text := appendEvent([]byte(header), &event{kind: kindOpened, text: "boot-1", until: start.Unix()})
	text = appendEvent(text, &event{kind: kindIssued, cert: c})
	text = appendEvent(text, &event{kind: kindFolded, key: foldKey{"spiffe://a/b", 1}, fold: fold{3, start.Unix()}})
	text = appendEvent(text, &event{kind: kindUnknown, until: start.Unix(), text: "lost"})
	f.Add(text)
	f.Add(appendEvent(text, &event{kind: kindClosed}))
	f.Add(text[:len(text)-3])
	f.Fuzz(func(t *testing.T, text []byte) {
		var again []byte
		table := newTable(100)
		found, err := decode(bytes.NewReader(text), "boot-1", func(e *event) {
			again = appendEvent(again, e)
			if e.kind == kindIssued {
				table.issued(&e.cert, start)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if found.lost == "" && len(text) < len(header) {
			t.Error("a journal without a header is complete")
		}
		// What was read says the same when it is written and read again.
		var events []event
		if _, err := decode(bytes.NewReader(append([]byte(header), again...)), "boot-1",
			func(e *event) { events = append(events, *e) }); err != nil {
			t.Fatal(err)
		}
		var third []byte
		for i := range events {
			third = appendEvent(third, &events[i])
		}
		if !bytes.Equal(again, third) {
			t.Errorf("%q is read as %q", again, third)
		}
	})
}

// The ca serves while its tasks start: what is issued before Run writes is in the journal all the same.
func TestACertificateIsWrittenBeforeRunStarts(t *testing.T) {
	f := newFixture(t, nil)
	first := testkit.Must(Open(f.cfg))(t)
	first.Issued(f.cert("a", inPod("web-0")))
	again := testkit.Must(Open(f.cfg))(t) // as after kill -9
	if behind := again.Behind(1, 2); len(behind) != 1 || behind[0].Signer != 1 {
		t.Errorf("holders %+v", behind)
	}
}
