// Package install keeps the CNI plugin on a node: its program beside those of the other plugins, and its entry in the
// configuration that the container runtime uses. Package cni runs it.
package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"fairlead.dev/pkg/clock"
	"fairlead.dev/pkg/fileio"
	"fairlead.dev/pkg/filewatch"
	"fairlead.dev/services/node-agent/internal/cni/plugin"
)

// Limits.
const (
	// maxConfig and maxProgram bound files, in bytes.
	maxConfig, maxProgram = 1 << 20, 256 << 20
	// again is how often the node is looked at without a notification.
	again = 5 * time.Second
	// standalone is the file of a plugin that is in no list, where it has no other name.
	standalone = "YY-" + plugin.Name + ".conf"
	// listEnd ends the names of lists that are made from the configuration of one plugin, and sort before that one's.
	listEnd = "-fairlead.conflist"
)

// Config says where things are.
type Config struct {
	// Program is the plugin's program in this container.
	Program string
	// BinDir and ConfDir are the node's directories of CNI plugins and of their configurations.
	BinDir, ConfDir string
	// ConfName is the configuration to change; "" for the one that the runtime uses, the first.
	ConfName string
	// Unchained writes a configuration of the plugin alone, which something else refers to; nothing is added to a list.
	Unchained bool
	// Plugin is its entry.
	Plugin plugin.Config
	Clock  clock.Clock
	Log    *slog.Logger
}

// Installer installs the plugin. It is safe for concurrent use.
type Installer struct {
	Config

	mu sync.Mutex
	// err is why the plugin is not installed now.
	err error
}

// New makes an Installer.
func New(c Config) *Installer {
	return &Installer{Config: c, err: errors.New("the CNI plugin is not installed yet")}
}

// Ready returns why the plugin is not installed, or nil.
func (i *Installer) Ready() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.err
}

// Run installs the plugin, and again whenever something has removed or replaced it, until ctx ends.
func (i *Installer) Run(ctx context.Context) error {
	filewatch.Follower{
		Files: func() []string {
			names, _ := i.configurations()
			return append(names, filepath.Join(i.BinDir, plugin.Name), filepath.Join(i.ConfDir, plugin.Name))
		},
		Read: func() time.Duration {
			changed, err := i.ensure()
			i.mu.Lock()
			before := i.err
			i.err = err
			i.mu.Unlock()
			switch {
			case err != nil && (before == nil || before.Error() != err.Error()):
				i.Log.Error("the CNI plugin is not installed", "error", err)
			case err == nil && len(changed) > 0:
				i.Log.Info("the CNI plugin is installed", "files", changed)
			}
			return again
		},
		Clock: i.Clock, Log: i.Log,
	}.Run(ctx)
	return nil
}

// ensure installs what is missing, and returns the files that it has written.
func (i *Installer) ensure() (changed []string, err error) {
	program, err := fileio.Read(i.Program, maxProgram)
	if err != nil {
		return nil, fmt.Errorf("program of the CNI plugin: %w", err)
	}
	// The program first: a runtime that finds the entry alone can start no Pod.
	if wrote, err := write(filepath.Join(i.BinDir, plugin.Name), program, 0o755, maxProgram); err != nil {
		return nil, err
	} else if wrote {
		changed = append(changed, filepath.Join(i.BinDir, plugin.Name))
	}
	path, text, err := i.wanted()
	if err != nil {
		return changed, err
	}
	wrote, err := write(path, text, 0o600, maxConfig)
	if wrote {
		changed = append(changed, path)
	}
	return changed, err
}

// write writes a file unless it has this content, atomically. A file that is there keeps its mode.
func write(path string, content []byte, mode fs.FileMode, limit int64) (bool, error) {
	if info, err := os.Stat(path); err == nil {
		if there, err := fileio.Read(path, limit); err == nil && bytes.Equal(there, content) {
			return false, nil
		}
		if limit == maxConfig {
			mode = info.Mode().Perm()
		}
	}
	return true, fileio.Write(path, content, mode)
}

// wanted is the configuration to write.
func (i *Installer) wanted() (path string, text []byte, err error) {
	if i.Unchained {
		c := i.Plugin
		c.Type, c.Name, c.CNIVersion = plugin.Name, plugin.Name, defaultVersion
		text, err = json.MarshalIndent(c, "", "  ")
		return filepath.Join(i.ConfDir, i.nameOr(standalone)), text, err
	}
	from, err := i.base()
	if err != nil {
		return "", nil, err
	}
	if text, err = fileio.Read(from, maxConfig); err != nil {
		return "", nil, err
	}
	path = from
	if filepath.Ext(from) != ".conflist" {
		path = strings.TrimSuffix(from, filepath.Ext(from)) + listEnd
		if text, err = listOf(text); err != nil {
			return "", nil, fmt.Errorf("CNI configuration %s: %w", from, err)
		}
	}
	if text, err = insert(text, i.Plugin); err != nil {
		return "", nil, fmt.Errorf("CNI configuration %s: %w", from, err)
	}
	return path, text, nil
}

func (i *Installer) nameOr(name string) string {
	if i.ConfName != "" {
		return i.ConfName
	}
	return name
}

// base is the configuration that ours is made from: the first one, as for the runtime, that we have not made.
func (i *Installer) base() (string, error) {
	if i.ConfName != "" {
		return filepath.Join(i.ConfDir, i.ConfName), nil
	}
	names, err := i.configurations()
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, listEnd) {
			return name, nil
		}
	}
	return "", fmt.Errorf("%s has no CNI configuration: the network of this node is not there yet, or --cni-conf-dir is another", i.ConfDir)
}

// configurations are the files that a runtime considers, in its order.
func (i *Installer) configurations() ([]string, error) {
	entries, err := os.ReadDir(i.ConfDir)
	if err != nil {
		return nil, fmt.Errorf("CNI configurations: %w", err)
	}
	var out []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); slices.Contains([]string{".conf", ".conflist", ".json"}, ext) && !e.IsDir() && e.Name() != standalone {
			out = append(out, filepath.Join(i.ConfDir, e.Name()))
		}
	}
	slices.Sort(out)
	return out, nil
}

// Remove takes the entry out of every configuration, and then removes the program.
func (i *Installer) Remove() error {
	names, err := i.configurations()
	errs := []error{err}
	for _, name := range names {
		errs = append(errs, i.removeFrom(name))
	}
	if i.Unchained {
		errs = append(errs, fileio.FS{}.Remove(filepath.Join(i.ConfDir, i.nameOr(standalone))))
	}
	if err := errors.Join(errs...); err != nil {
		return err // the program stays: a runtime that finds the entry alone can start no Pod
	}
	return fileio.FS{}.Remove(filepath.Join(i.BinDir, plugin.Name))
}

func (i *Installer) removeFrom(path string) error {
	if strings.HasSuffix(path, listEnd) {
		return fileio.FS{}.Remove(path)
	}
	text, err := fileio.Read(path, maxConfig)
	if err != nil {
		return err
	}
	text, had, err := without(text)
	if err != nil || !had {
		return nil //nolint:nilerr // what cannot be read is not ours
	}
	_, err = write(path, text, 0o600, maxConfig)
	return err
}
