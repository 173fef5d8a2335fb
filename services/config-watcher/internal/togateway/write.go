package togateway

import (
	"encoding/json"
	"errors"
	"io"

	"sigs.k8s.io/yaml"

	"fairlead.dev/services/config-watcher/internal/manifest"
	"fairlead.dev/services/config-watcher/internal/object"
	"fairlead.dev/services/config-watcher/internal/source/file"
	"fairlead.dev/services/config-watcher/internal/validate"
)

// Write writes the objects as YAML, without a status.
func (r *Result) Write(out io.Writer) error {
	for _, o := range r.Objects {
		text, err := json.Marshal(o)
		if err != nil {
			return err
		}
		var tree map[string]any
		if err := json.Unmarshal(text, &tree); err != nil {
			return err
		}
		delete(tree, "status")
		if text, err = yaml.Marshal(tree); err != nil {
			return err
		}
		if _, err := io.WriteString(out, "---\n"+string(text)); err != nil {
			return err
		}
	}
	return nil
}

// Stdin is the path that stands for the standard input.
const Stdin = "-"

// Read reads the objects of files, directories, and Stdin, which is read from in. Objects that are refused are
// problems; kinds that no mesh reads are left out. An error names a path that cannot be read.
func Read(paths []string, in io.Reader) (objects []*object.Object, problems object.Problems, err error) {
	add := func(name string, content []byte) {
		problems = append(problems, manifest.Each(name, content, func(doc *manifest.Document) {
			o, err := validate.Document(doc)
			var refused object.Problems
			switch {
			case err == nil:
				objects = append(objects, o)
			case errors.As(err, &refused):
				problems = append(problems, refused...)
			case !errors.Is(err, validate.ErrIgnored):
				problems = append(problems, object.Problem{Location: doc.Location(), Reason: err.Error(),
					Remedy: "see the reference of the kind"})
			}
		})...)
	}
	var named []string
	for _, p := range paths {
		if p != Stdin {
			named = append(named, p)
			continue
		}
		content, err := file.Bounded(in)
		if err != nil {
			return nil, nil, err
		}
		add("stdin", content)
	}
	files, err := file.Files(named)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		content, err := file.Content(f)
		if err != nil {
			return nil, nil, err
		}
		add(f, content)
	}
	return objects, problems, nil
}
