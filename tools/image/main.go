// Command image writes a container image of one static binary as a docker-archive, without a container daemon or a
// registry:
//
//	go run ./tools/image -binary bin/ca -name fairlead/ca:dev -out bin/ca.tar
//
// The archive loads with `docker load`, `podman load`, `ctr images import`, `kind load image-archive` and `skopeo copy
// docker-archive:`. The same inputs give the same bytes: every time stamp is that of SOURCE_DATE_EPOCH, or zero.
package main

import (
	"bytes"
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

	"github.com/google/go-containerregistry/pkg/name"
)

func main() {
	if err := run(os.Args[1:], os.Getenv, os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		if _, ok := errors.AsType[usageError](err); ok {
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
	image := flags.String("name", "", "repository:tag of the image (required)")
	out := flags.String("out", "", "archive to write (required)")
	user := flags.String("user", "1337:1337", "numeric uid:gid the image runs as")
	var arguments argFlag
	flags.Var(&arguments, "arg", "argument of the entry point, unless whoever runs the image gives others (repeatable)")
	var extra addFlag
	flags.Var(&extra, "add", "`host-file=/path/in/image`; a dynamic executable brings its loader and libraries along (repeatable)")
	alias := flags.String("alias", "", "further name of the binary in /usr/local/bin, by a symbolic link")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return err
		}
		return usageError{err}
	}
	if flags.NArg() > 0 {
		return usagef("unexpected argument %q", flags.Arg(0))
	}
	if *binary == "" || *image == "" || *out == "" {
		return usagef("-binary, -name and -out are required")
	}
	tag, err := parseName(*image)
	if err != nil {
		return usageError{err}
	}
	if !regexp.MustCompile(`^[0-9]+:[0-9]+$`).MatchString(*user) {
		return usagef("-user %q is not uid:gid in numbers; Kubernetes cannot tell from a name whether it is root", *user)
	}
	created, err := sourceDate(env("SOURCE_DATE_EPOCH"))
	if err != nil {
		return usageError{err}
	}

	spec := spec{tag: tag, user: *user, created: created, arguments: arguments}
	if err := spec.addEntrypoint(*binary); err != nil {
		return err
	}
	if *alias != filepath.Base(*alias) && *alias != "" {
		return usagef("-alias %q is not the name of a file", *alias)
	}
	if *alias != "" {
		spec.put("/usr/local/bin/"+*alias, entry{link: filepath.Base(*binary)})
	}
	for _, a := range extra {
		if err := spec.addFile(a.host, a.image); err != nil {
			return err
		}
	}
	var archive bytes.Buffer
	if err := spec.write(&archive); err != nil {
		return err
	}
	size := archive.Len()
	if err := writeFile(*out, archive.Bytes()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: %s, %.1f MiB\n", *out, *image, float64(size)/(1<<20))
	return err
}

// argFlag is the value of the repeated flag -arg.
type argFlag []string

func (a *argFlag) String() string { return "" }

func (a *argFlag) Set(value string) error {
	*a = append(*a, value)
	return nil
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

// parseName wants a tag other than latest: a cluster always pulls latest, and these images are in no registry.
func parseName(text string) (name.Tag, error) {
	tag, err := name.NewTag(text)
	if err != nil {
		return tag, fmt.Errorf("-name %q is not repository:tag: %w", text, err)
	}
	if tag.TagStr() == name.DefaultTag {
		return tag, fmt.Errorf("-name %q: write repository:tag with another tag than latest, which clusters try to pull from a registry", text)
	}
	return tag, nil
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

// writeFile writes through a second file, so that a failure leaves no half archive behind.
func writeFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	unfinished := path + ".new"
	err := os.WriteFile(unfinished, content, 0o644)
	if err == nil {
		err = os.Rename(unfinished, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(unfinished))
	}
	return nil
}
