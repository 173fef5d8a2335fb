// Command image writes a container image of one static binary as a docker-archive, without a container daemon or a
// registry:
//
//	go run ./tools/image -binary bin/ca -name fairlead/ca:dev -out bin/ca.tar
//
// The archive loads with `docker load`, `podman load`, `ctr images import`, `kind load image-archive` and `skopeo copy
// docker-archive:`. The same inputs give the same bytes: every time stamp is that of SOURCE_DATE_EPOCH, or zero.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:], os.Getenv, os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		var usage usageError
		if errors.As(err, &usage) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

// usageError is an error of the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func run(args []string, env func(string) string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	binary := flags.String("binary", "", "static Linux binary; becomes /usr/local/bin/<its name> and the entry point (required)")
	name := flags.String("name", "", "repository:tag of the image (required)")
	out := flags.String("out", "", "archive to write (required)")
	user := flags.String("user", "1337:1337", "numeric uid:gid the image runs as")
	var extra addFlag
	flags.Var(&extra, "add", "`host-file=/path/in/image`; a dynamic executable brings its loader and libraries along (repeatable)")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if flags.NArg() > 0 {
		return usagef("unexpected argument %q", flags.Arg(0))
	}
	if *binary == "" || *name == "" || *out == "" {
		return usagef("-binary, -name and -out are required")
	}
	if err := checkName(*name); err != nil {
		return usageError{err}
	}
	if !regexp.MustCompile(`^[0-9]+:[0-9]+$`).MatchString(*user) {
		return usagef("-user %q is not uid:gid in numbers; Kubernetes cannot tell from a name whether it is root", *user)
	}
	created, err := sourceDate(env("SOURCE_DATE_EPOCH"))
	if err != nil {
		return usageError{err}
	}

	spec := spec{name: *name, user: *user, created: created}
	if err := spec.addEntrypoint(*binary); err != nil {
		return err
	}
	for _, a := range extra {
		if err := spec.addFile(a.host, a.image); err != nil {
			return err
		}
	}
	size, err := writeFile(*out, spec.write)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: %s, %.1f MiB\n", *out, *name, float64(size)/(1<<20))
	return err
}

// addFlag is the value of the repeated flag -add.
type addFlag []struct{ host, image string }

func (a *addFlag) String() string { return "" }

func (a *addFlag) Set(value string) error {
	host, image, ok := strings.Cut(value, "=")
	if !ok || host == "" || !strings.HasPrefix(image, "/") || filepath.Clean(image) != image || image == "/" {
		return errors.New("want host-file=/path/in/image")
	}
	*a = append(*a, struct{ host, image string }{host, image})
	return nil
}

var reference = regexp.MustCompile(`^[a-z0-9]+([._/:-]+[a-z0-9]+)*:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// checkName requires a tag other than latest: clusters always pull latest, and these images are in no registry.
func checkName(name string) error {
	if !reference.MatchString(name) {
		return fmt.Errorf("-name %q is not repository:tag", name)
	}
	if strings.HasSuffix(name, ":latest") {
		return fmt.Errorf("-name %q: choose another tag, clusters try to pull latest from a registry", name)
	}
	return nil
}

func sourceDate(epoch string) (time.Time, error) {
	if epoch == "" {
		return time.Unix(0, 0).UTC(), nil
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || seconds < 0 {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q is not a number of seconds", epoch)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// writeFile writes through a temporary file, so that an error leaves no partial archive.
func writeFile(path string, write func(io.Writer) error) (size int64, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return 0, err
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return 0, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err := errors.Join(write(file), file.Chmod(0o644)); err != nil {
		return 0, errors.Join(err, file.Close())
	}
	size, err = file.Seek(0, io.SeekCurrent)
	if err = errors.Join(err, file.Close()); err != nil {
		return 0, err
	}
	return size, os.Rename(file.Name(), path)
}
