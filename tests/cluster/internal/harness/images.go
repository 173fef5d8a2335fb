package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
)

// Load imports archives of images into the container runtime of each node. An image of the same name is replaced.
func Load(ctx context.Context, d Dir, archives []string, out io.Writer) error {
	return onNodes(d, func(socket string) error { return load(ctx, socket, archives, out) })
}

// Tag gives every image of the project that has one tag another one, too: for the nodes, a version of its own.
func Tag(ctx context.Context, d Dir, from, to string) error {
	return onNodes(d, func(socket string) error {
		all, err := list(ctx, socket)
		if err != nil {
			return err
		}
		tagged := 0
		for _, image := range all {
			name, found := strings.CutSuffix(image, ":"+from)
			if !found || !strings.Contains(name, "/fairlead/") {
				continue
			}
			tagged++
			if _, err := ctr(ctx, socket, "tag", "--force", image, name+":"+to); err != nil {
				return err
			}
		}
		if tagged == 0 {
			return fmt.Errorf("no image fairlead/NAME:%s is loaded; `make cluster-load` loads them", from)
		}
		return nil
	})
}

// onNodes calls f with containerd's socket of every node of a cluster that is up.
func onNodes(d Dir, f func(socket string) error) error {
	if err := checkRoot(); err != nil {
		return err
	}
	pid, err := d.Up()
	if err != nil {
		return fmt.Errorf("%w; `make cluster-up` starts one", err)
	}
	pids := []int{pid}
	if second, err := d.second().Up(); err == nil {
		pids = append(pids, second)
	}
	for _, pid := range pids {
		if err := f(fmt.Sprintf("/proc/%d/root%s", pid, containerdSocket)); err != nil {
			return err
		}
	}
	return nil
}

func load(ctx context.Context, socket string, archives []string, out io.Writer) error {
	for _, a := range archives {
		if _, err := ctr(ctx, socket, "import", a); err != nil {
			return err
		}
		if out != nil {
			fmt.Fprintf(out, "loaded %s\n", filepath.Base(a))
		}
	}
	return nil
}

// list returns the names of all images that have a tag.
func list(ctx context.Context, socket string) (names []string, err error) {
	all, err := ctr(ctx, socket, "list", "--quiet")
	for name := range strings.FieldsSeq(all) {
		// The others are names that containerd gives an image by its digest.
		if strings.Contains(name, "/") && !strings.Contains(name, "@") {
			names = append(names, name)
		}
	}
	return names, err
}

// copyImages copies all images from one containerd to another.
func copyImages(ctx context.Context, from, to string) error {
	names, err := list(ctx, from)
	if err != nil {
		return err
	}
	exporter := images(ctx, from, append([]string{"export", "-"}, names...)...)
	importer := images(ctx, to, "import", "-")
	var exported, imported strings.Builder
	exporter.Stderr, importer.Stderr = &exported, &imported
	archive, err := exporter.StdoutPipe()
	if err != nil {
		return err
	}
	importer.Stdin = archive
	if err := exporter.Start(); err != nil {
		return err
	}
	err = importer.Run()
	// If it fails, the other one finds nobody who reads, and fails, too.
	_ = archive.Close()
	if err := errors.Join(err, exporter.Wait()); err != nil {
		return fmt.Errorf("copy images: %w: %s%s", err, exported.String(), imported.String())
	}
	return nil
}

// images is a command of ctr about images.
func images(ctx context.Context, socket string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ctr", append([]string{"--address", socket, "--namespace", "k8s.io", "images"}, args...)...)
}

// ctr runs such a command, and returns what it prints.
func ctr(ctx context.Context, socket string, args ...string) (string, error) {
	said, err := images(ctx, socket, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("ctr images %s: %w: %s", strings.Join(args, " "), err, said)
	}
	return string(said), nil
}
