package revision

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fairlead.dev/pkg/testkit"
	configv1 "fairlead.dev/proto/fairlead/config/v1"
)

func TestNumbersContinueAfterRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revision")
	run := func(commits int) (last *Snapshot, log *Log) {
		c, err := OpenCounter(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		log = NewLog("e", testkit.NewClock(time.Unix(0, 0)))
		log.Continue(c, func(err error) { t.Error(err) })
		for range commits {
			last = log.Commit([]*configv1.Resource{ns("a", "0")}, nil, "")
		}
		return last, log
	}
	if last, _ := run(12); last.Sequence() != 12 {
		t.Errorf("first run ends at %d", last.Sequence())
	}
	if last, _ := run(1); last.Sequence() != 13 {
		t.Errorf("second run begins with %d", last.Sequence())
	}
	last, log := run(2)
	if last.Sequence() != 15 {
		t.Errorf("third run ends at %d", last.Sequence())
	}
	next := log.Commit([]*configv1.Resource{ns("b", "0")}, nil, "")
	if d := log.Between(last, next); len(d.Upserts) != 1 || len(log.keys) != 3 {
		t.Errorf("difference %v of %d revisions that are remembered", d, len(log.keys))
	}
}

func TestCounterFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "revision")
	c, err := OpenCounter(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []uint64{math.MaxUint64, 7} {
		if err := c.store(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.store(8); err == nil {
		t.Error("a number was kept in a closed file")
	}
	if c, err = OpenCounter(path); err != nil || c.Last() != 7 {
		t.Fatalf("%v, %v", c, err)
	}
	_ = c.Close()
	for _, bad := range []string{"x", "-1", strings.Repeat("9", 40), "1 2\n", "18446744073709551615\n", "\x00\x00"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenCounter(path); err == nil || !strings.Contains(err.Error(), "remove it") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
