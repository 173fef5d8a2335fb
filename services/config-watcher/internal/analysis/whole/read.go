package whole

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"fairlead.dev/services/config-watcher/internal/analysis/finding"
	"fairlead.dev/services/config-watcher/internal/decode"
	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/file"
	"fairlead.dev/services/config-watcher/internal/validate/meshconfig"
)

// Stdin is the path that stands for the standard input; stdinName is its name in messages.
const (
	Stdin     = "-"
	stdinName = "stdin"
)

// ReadFiles loads the objects of the files that paths name: a file, a directory with its subdirectories, a named pipe,
// or Stdin, which is read from in. Text that is no object becomes a message. An error names a path that cannot be read;
// then nothing was loaded.
func (m *Mesh) ReadFiles(paths []string, in io.Reader) error {
	named := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return p == Stdin })
	files, err := file.Files(named)
	if err != nil {
		return err
	}
	if len(named) < len(paths) {
		content, err := file.Bounded(in)
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		m.content(stdinName, content)
	}
	for _, name := range files {
		content, err := file.Content(name)
		if err != nil {
			m.Unreadable(object.Problem{Location: name, Reason: "cannot be read: " + err.Error(),
				Remedy: "make it a file that can be read, or do not name it"})
			continue
		}
		m.content(name, content)
	}
	return nil
}

func (m *Mesh) content(name string, content []byte) {
	for _, p := range manifest.Each(name, content, func(doc *manifest.Document) {
		if meshconfig.IsBare(doc.Tree) {
			m.Unreadable(object.Problem{Location: doc.Location(), Reason: "is a mesh configuration without an object around it",
				Remedy: "name it with --mesh-config-file"})
			return
		}
		if key, version := decode.Identify(doc.Tree); key.Kind == "" || version == "" {
			m.Unreadable(object.Problem{Location: doc.Location(), Reason: "has no apiVersion and kind",
				Remedy: "start the object with apiVersion, kind and metadata"})
			return
		}
		m.Load(doc)
	}) {
		m.Unreadable(p)
	}
}

// SettingsOf reads a file with a mesh configuration, without an object around it or within its ConfigMap.
func (m *Mesh) SettingsOf(name string) error {
	content, err := file.Content(name)
	if err != nil {
		return err
	}
	settings, warnings, problems := meshconfig.Parse(name, content)
	if len(problems) > 0 {
		return fmt.Errorf("%s is no mesh configuration: %w", name, errors.Join(problems.Err()))
	}
	for _, w := range warnings {
		m.messages = append(m.messages,
			finding.Finding{Code: finding.FieldWithoutEffect, Severity: finding.FieldWithoutEffect.Describe().Severity,
				Problem: w, FromFile: true})
	}
	m.cfg.Settings = settings
	return nil
}
