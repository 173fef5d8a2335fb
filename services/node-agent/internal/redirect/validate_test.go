package redirect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fairlead.dev/pkg/testkit"
)

func TestValidateFindsWhetherTrafficIsRedirected(t *testing.T) {
	if namespaced(t, "iptables-legacy") {
		return
	}
	try := func(o *Options, patience time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return Validate(ctx, o)
	}
	for _, mode := range []string{"REDIRECT", "TPROXY"} {
		for _, backend := range []string{"nftables", "iptables-legacy"} {
			o := parse(t, func(r *RawOptions) { r.Mode, r.Backend = mode, backend })
			if err := try(o, 3*retry); !errors.Is(err, ErrUnverified) || !strings.Contains(err.Error(), "127.0.0.6:15002") {
				t.Errorf("%s without rules: %v", mode, err)
			}
			apply(t, o)
			if err := try(o, testkit.Patience); err != nil {
				t.Errorf("%s by %s: %v", mode, backend, err)
			}
			other := *o
			other.UIDs = []uint32{1234}
			if err := try(&other, 3*retry); !errors.Is(err, ErrUnverified) {
				t.Errorf("%s by %s, as another user: %v", mode, backend, err)
			}
			if err := Remove(t.Context(), o, Exec); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := try(parse(t, func(r *RawOptions) { r.Mode = "NONE" }), retry); err != nil {
		t.Errorf("nothing to redirect: %v", err)
	}
}

func TestInRunsInAnotherNamespace(t *testing.T) {
	if namespaced(t) {
		return
	}
	other := make(chan string)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
		}
		other <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		<-t.Context().Done()
	}()
	namespace := <-other
	o := parse(t)
	if err := In(namespace, func() error { _, err := Apply(t.Context(), o, Exec); return err }); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, "nft list ruleset"); got != "" {
		t.Errorf("this namespace has rules:\n%s", got)
	}
	if got := sh(t, "nsenter --net="+namespace+" nft list ruleset"); !strings.Contains(got, "redirect to :15001") {
		t.Errorf("the other namespace has the rules:\n%s", got)
	}
	if err := In("/proc/none/ns/net", func() error { return nil }); err == nil || !strings.Contains(err.Error(), "/proc/none/ns/net") {
		t.Errorf("a namespace that is not there: %v", err)
	}
}
