package kubeapi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// ErrNoPrograms says how to get the programs.
var ErrNoPrograms = errors.New("KUBE_BIN names no directories with the programs of Kubernetes and etcd: run `make test-kube`, " +
	"or set KUBE_BIN to what `tools/build-cached.sh kubernetes etcd` prints")

// Program returns the path of a program in the directories of $KUBE_BIN, which are listed as in PATH.
func Program(name string) (string, error) {
	list := filepath.SplitList(os.Getenv("KUBE_BIN"))
	if len(list) == 0 {
		return "", ErrNoPrograms
	}
	for _, dir := range list {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("no %s in the directories %q: %w", name, list, ErrNoPrograms)
}

// Main runs the tests of a package that needs the programs, for its TestMain. Without KUBE_BIN, as under `make test`,
// it runs none of them and says so; a package without this Main fails then.
func Main(m interface{ Run() int }) int {
	if os.Getenv("KUBE_BIN") == "" {
		fmt.Fprintln(os.Stderr, "tests skipped:", ErrNoPrograms)
		return 0
	}
	return m.Run()
}
