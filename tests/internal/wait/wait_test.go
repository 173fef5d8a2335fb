package wait_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"fairlead.dev/tests/internal/wait"
)

func TestUntil(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	end()
	for name, tc := range map[string]struct {
		ctx    context.Context
		within time.Duration
		fails  int
		want   string
	}{
		"at once":     {t.Context(), time.Minute, 0, ""},
		"later":       {t.Context(), time.Minute, 3, ""},
		"never":       {t.Context(), 5 * time.Millisecond, 1 << 30, "not within 5ms: not yet"},
		"ctx has end": {ended, time.Minute, 1, "not yet"},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			err := wait.Until(tc.ctx, time.Millisecond, tc.within, func() error {
				if calls++; calls <= tc.fails {
					return errors.New("not yet")
				}
				return nil
			})
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("after %d calls: %v, want %q", calls, err, tc.want)
			}
		})
	}
}

func TestEachJoinsErrors(t *testing.T) {
	err := wait.Each([]string{"a", "", "b"}, func(s string) error {
		if s == "" {
			return nil
		}
		return errors.New(s)
	})
	if err == nil || err.Error() != "a\nb" {
		t.Errorf("got %v", err)
	}
	if err := wait.Both(func() error { return nil }, func() error { return errors.New("second") }); err == nil {
		t.Error("the second error is lost")
	}
}
