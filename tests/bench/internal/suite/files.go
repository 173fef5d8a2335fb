package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"fairlead.dev/tests/bench/internal/mesh"
	"fairlead.dev/tests/internal/wait"
)

// The mesh of the rows about files: about 20,000 documents in files of 100, and 10 MB.
var filesMesh = mesh.Spec{Services: 4300, Rules: 3550}

const (
	documentsPerFile = 100
	// filesWatched is how long after the start of config-watcher its CPU is counted.
	filesWatched = 20 * time.Second
)

// files measures how soon the real config-watcher is ready with a mesh of files, and what it takes. The floor is what
// decodeAlone takes, in the mean of one run before and one after. config-watcher has all cores: nothing else runs.
func (l *lab) files(ctx context.Context, t *table) error {
	dir := filepath.Join(l.dir, "files")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	documents, err := filesMesh.YAML()
	if err != nil {
		return err
	}
	bytes := 0
	for i := 0; i < len(documents); i += documentsPerFile {
		var content []byte
		for _, d := range documents[i:min(i+documentsPerFile, len(documents))] {
			content = append(append(content, "---\n"...), d...)
		}
		bytes += len(content)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%04d.yaml", i/documentsPerFile)), content, 0o600); err != nil {
			return err
		}
	}
	before, err := l.decodeAlone(documents)
	if err != nil {
		return err
	}
	began := time.Now()
	watcher, err := l.services.ConfigWatcherOn(ctx, l.allCores(), "--config-dir", dir, "--state-dir", filepath.Join(l.dir, "files-state"))
	if err != nil {
		return err
	}
	defer watcher.Stop()
	ready, readyCPU := time.Since(began), watcher.CPU()
	if l.Profile {
		if err := l.fetch(ctx, watcher.Ops, "allocs", "files-allocs"); err != nil {
			return err
		}
	}
	if err := wait.Pause(ctx, filesWatched-time.Since(began)); err != nil {
		return err
	}
	cpu := watcher.CPU()
	memory, err := watcher.Memory()
	if err != nil {
		return err
	}
	watcher.Stop()
	after, err := l.decodeAlone(documents)
	if err != nil {
		return err
	}
	took, used := (before.took+after.took)/2, (before.cpu+after.cpu)/2
	what := fmt.Sprintf("config-watcher with %d documents in files, %s", len(documents), size(float64(bytes)))
	t.floorLine("files/ready", what+": ready after", ready, took, 4, 3*time.Second)
	t.fixedLine("files/ready-cpu", "CPU until then", readyCPU, used, 0, "")
	t.floorLine("files/cpu", "CPU in the first 20 s", cpu, used, 3.5, 5*time.Second)
	t.bytesLine("files/peak", "peak memory", float64(memory.Peak), 400<<20, "")
	t.bytesLine("files/resident", "memory after 20 s", float64(memory.Resident), -1, "")
	return nil
}

// decoding is what decodeAlone has taken: time, and time of all processors.
type decoding struct{ took, cpu time.Duration }

// decodeAlone decodes the documents with the library and does nothing else, on all cores at the same time, as
// config-watcher does: two threads of one core, or another program of the machine, slow both.
func (l *lab) decodeAlone(documents [][]byte) (decoding, error) {
	cores := l.allCores()
	workers := cores.Count()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(workers))
	cpu := make([]time.Duration, workers)
	var all errgroup.Group
	began := time.Now()
	for w := range workers {
		all.Go(func() error {
			// The thread ends with the goroutine, since it is not unlocked: it must run nothing else on these cores.
			runtime.LockOSThread()
			if err := unix.SchedSetaffinity(0, cores); err != nil {
				return fmt.Errorf("use all cores: %w", err)
			}
			start, err := threadTime()
			if err != nil {
				return err
			}
			for i := w; i < len(documents); i += workers {
				var tree map[string]any
				if err := yaml.UnmarshalStrict(documents[i], &tree); err != nil {
					return err
				}
			}
			end, err := threadTime()
			cpu[w] = end - start
			return err
		})
	}
	err := all.Wait()
	d := decoding{took: time.Since(began)}
	for _, c := range cpu {
		d.cpu += c
	}
	return d, err
}

func threadTime() (time.Duration, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now)
	return time.Duration(now.Nano()), err
}
