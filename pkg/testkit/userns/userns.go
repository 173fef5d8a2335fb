// Package userns runs tests that need network namespaces or mounts as any user: Main and Again run them as root of new
// user, network and mount namespaces, unless the user is root. Where namespaces cannot be made, the tests are skipped
// with the reason.
package userns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// inside is set in processes that run in namespaces of this package.
const inside = "FAIRLEAD_TEST_USER_NAMESPACE"

// namespaces are unshare's flags for namespaces in which the user may do what root does.
var namespaces = []string{"-Urnm", "--map-auto", "--map-root-user"}

// Main runs a package's tests as root of new namespaces, or as they are if the user is root or namespaces cannot be
// made. It does not return. TestMain calls it.
func Main(m *testing.M) {
	if os.Getuid() == 0 || obstacle() != "" {
		os.Exit(m.Run())
	}
	cmd := command(os.Args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}

// Again runs the calling test, which must not be a subtest, as root of new namespaces unless the user is root. It
// returns true if the caller must return: the test has run there, or is skipped because that is not possible.
func Again(t *testing.T, programs ...string) (done bool) {
	t.Helper()
	Need(t, programs...)
	if os.Getuid() == 0 {
		return false
	}
	cmd := command(os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.v", "-test.count", "1")
	out, err := cmd.CombinedOutput()
	switch {
	case err != nil:
		t.Errorf("as root of its own namespaces: %v\n%s", err, out)
	case strings.Contains(string(out), "--- SKIP: "+t.Name()):
		t.Skipf("as root of its own namespaces:\n%s", out)
	case !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Errorf("as root of its own namespaces it does not say that it passed:\n%s", out)
	}
	return true
}

// Need skips the test if namespaces cannot be made or a program is missing. For root on CI, that is a failure.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	missing := Missing(programs...)
	switch {
	case len(missing) == 0:
	case os.Getenv("CI") != "" && os.Getuid() == 0 && os.Getenv(inside) == "":
		t.Fatalf("needs %s", strings.Join(missing, ", "))
	default:
		t.Skipf("needs %s", strings.Join(missing, ", "))
	}
}

// Missing lists which programs, or the right to make namespaces, the machine lacks.
func Missing(programs ...string) []string {
	var missing []string
	if why := obstacle(); why != "" {
		missing = append(missing, why)
	}
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	return missing
}

// answers is how long processes that a probe has left behind may keep its output open.
const answers = 5 * time.Second

// obstacle is why namespaces cannot be made; empty if they can.
var obstacle = sync.OnceValue(func() string {
	// The program unshare leaves a child behind where user namespaces are refused, so the kernel is asked first.
	bare := exec.Command("true")
	if os.Getuid() == 0 {
		bare.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS}
		if err := bare.Run(); err != nil {
			return fmt.Sprintf("the right to make network namespaces (capability SYS_ADMIN: %v)", err)
		}
		return ""
	}
	bare.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	if err := bare.Run(); err != nil {
		return fmt.Sprintf("root, or user namespaces (%v)", err)
	}
	probe := command("true")
	probe.WaitDelay = answers
	if out, err := probe.CombinedOutput(); err != nil {
		return fmt.Sprintf("root, or user namespaces with subordinate ids and the programs unshare, newuidmap (package uidmap) and ip (%v: %s)",
			err, strings.TrimSpace(string(out)))
	}
	return ""
})

// command returns a command that runs a program as root of new namespaces.
func command(program ...string) *exec.Cmd {
	script := []string{"sh", "-c", `ip link set lo up && exec "$@"`, "sh"}
	cmd := exec.Command("unshare", append(append(namespaces[:len(namespaces):len(namespaces)], script...), program...)...)
	cmd.Env = append(os.Environ(), inside+"=1")
	return cmd
}
