// Package scenarios runs traffic scenarios on real Envoys: see README.md for their format.
//
//	go test ./scenarios -dir DIR               every scenario of a directory
//	go test ./scenarios -dir DIR -run NAME -v  those whose names match, each step with its time
package scenarios

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

var (
	dirs = flag.String("dir", "examples", "directories with scenarios, comma separated")
	out  = flag.String("out", "", "directory for the report (junit.xml, summary.txt), and for logs and configuration dumps of what failed")
	// only is a regular expression for names of scenarios.
	only string
	// missing is what the machine lacks.
	missing string
)

func TestMain(m *testing.M) {
	flag.Parse()
	// A pattern that no test of this package is meant by is one for scenarios.
	if f := flag.Lookup("test.run"); f.Value.String() != "" && f.Value.String() != "^$" && !strings.Contains(f.Value.String(), "Test") {
		only = f.Value.String()
		if err := f.Value.Set("^TestScenarios$"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	if os.Getuid() != 0 {
		if out, err := exec.Command("unshare", append(namespaces, "true")...).CombinedOutput(); err == nil {
			os.Exit(again())
		} else {
			missing = fmt.Sprintf("root, or user namespaces with subordinate ids (unshare: %v %s)", err, strings.TrimSpace(string(out)))
		}
	}
	os.Exit(m.Run())
}

// namespaces are those in which a user may do what root does on a machine of its own.
var namespaces = []string{"-Urnm", "--map-auto", "--map-root-user"}

// again runs the test as root of new user, network and mount namespaces.
func again() int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	args := append(namespaces, "sh", "-c", `mount -t tmpfs none /run && mkdir /run/netns && ip link set lo up && exec "$@"`, "sh", self)
	cmd := exec.Command("unshare", slices.Concat(args, os.Args[1:])...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		return exit.ExitCode()
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}
