package dirlock_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"fairlead.dev/pkg/dirlock"
	"fairlead.dev/pkg/testkit"
)

const childEnv = "DIRLOCK_TEST_PATH"

// TestMain runs another process in the test binary: it takes the lock that its environment names, prints a line, and
// waits to be killed.
func TestMain(m *testing.M) {
	path := os.Getenv(childEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	lock, err := dirlock.Acquire(path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer lock.Release()
	fmt.Println("locked")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
}

func TestOneHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), ".lock")
	lock, err := dirlock.Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	var inUse *dirlock.InUseError
	if _, err := dirlock.Acquire(path); !errors.As(err, &inUse) || inUse.PID != os.Getpid() || inUse.Path != path {
		t.Errorf("second lock: %v", err)
	}
	if pid, err := dirlock.Holder(path); err != nil || pid != os.Getpid() {
		t.Errorf("holder %d, %v", pid, err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if pid, err := dirlock.Holder(path); err != nil || pid != 0 {
		t.Errorf("holder after release %d, %v", pid, err)
	}
	again, err := dirlock.Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = again.Release()
	if pid, err := dirlock.Holder(filepath.Join(t.TempDir(), "none")); err != nil || pid != 0 {
		t.Errorf("holder of nothing %d, %v", pid, err)
	}
}

// TestKillReleases: after the holder was killed with SIGKILL, another process gets the lock.
func TestKillReleases(t *testing.T) {
	path := filepath.Join(t.TempDir(), ".lock")
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), childEnv+"="+path)
	in, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "locked\n" {
		t.Fatalf("the other process: %q %v", line, err)
	}
	var inUse *dirlock.InUseError
	if _, err := dirlock.Acquire(path); !errors.As(err, &inUse) || inUse.PID != other.Process.Pid {
		t.Errorf("while it lives: %v", err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	var lock *dirlock.Lock
	testkit.Eventually(t, testkit.Patience, func() error {
		lock, err = dirlock.Acquire(path)
		return err
	})
	_ = lock.Release()
}
