// Package profile reads install packages: a directory with charts/, profiles/ and components.yaml, which says which
// chart a component has, where its values are, and what its objects are called, and perhaps values.schema.json, the
// values that it has beside Istio's. Istio's own manifests directory has no components.yaml and gets istio.yaml, which
// is embedded here.
package profile

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"

	"fairlead.dev/pkg/nearest"
	"fairlead.dev/services/installer/internal/install/tree"
)

// Default is the profile that lies under every other.
const Default = "default"

// Bounds of what an install package may hold.
const (
	maxFileBytes  = 16 << 20
	maxChartBytes = 64 << 20
	maxChartFiles = 5000
)

//go:embed istio.yaml
var istio []byte

// Package is an install package.
type Package struct {
	fs fs.FS
	// Mapping of components to charts and names.
	Mapping
}

// Open reads the mapping of the package in fsys. Every later read goes to fsys too.
func Open(fsys fs.FS) (*Package, error) {
	for _, dir := range []string{"charts", "profiles"} {
		if info, err := fs.Stat(fsys, dir); err != nil || !info.IsDir() {
			return nil, fmt.Errorf("the install package has no directory %s/; name a directory that has charts/ and profiles/, such as manifests/ "+
				"of an Istio release", dir)
		}
	}
	text, err := readFile(fsys, "components.yaml")
	if errors.Is(err, fs.ErrNotExist) {
		text, err = istio, nil
	}
	if err != nil {
		return nil, err
	}
	mapping, err := parseMapping(text)
	if err != nil {
		return nil, fmt.Errorf("components.yaml of the install package: %w", err)
	}
	text, err = readFile(fsys, "values.schema.json")
	if err == nil {
		mapping.Schema = &Schema{}
		err = json.Unmarshal(text, mapping.Schema)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("values.schema.json of the install package: %w", err)
	}
	return &Package{fs: fsys, Mapping: *mapping}, nil
}

// OpenDir reads an install package from a directory. A link that leads out of it is an error when it is followed:
// whoever has made the package would otherwise choose files of the user's for what is installed.
func OpenDir(dir string) (*Package, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("the install package cannot be opened, name a directory that has charts/ and profiles/: %w", err)
	}
	return Open(root.FS())
}

func readFile(fsys fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFileBytes {
		return nil, fmt.Errorf("%s of the install package is no regular file of at most %d bytes", name, maxFileBytes)
	}
	return fs.ReadFile(fsys, name)
}

// Names lists the profiles in order.
func (p *Package) Names() ([]string, error) {
	entries, err := fs.ReadDir(p.fs, "profiles")
	if err != nil {
		return nil, fmt.Errorf("profiles of the install package: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".yaml"); ok && !e.IsDir() {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Spec returns the spec of one profile's file alone. For any profile but the default, lay it on the default's.
func (p *Package) Spec(name string) (tree.Map, error) {
	names, err := p.Names()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(names, name) {
		return nil, &UnknownError{Name: name, Known: names}
	}
	text, err := readFile(p.fs, path.Join("profiles", name+".yaml"))
	if err != nil {
		return nil, err
	}
	doc, err := tree.ParseMap(text)
	if err != nil {
		return nil, fmt.Errorf("profile %s of the install package: %w", name, err)
	}
	spec, ok := doc["spec"].(tree.Map)
	if !ok {
		return nil, fmt.Errorf("profile %s of the install package has no spec", name)
	}
	return spec, nil
}

// UnknownError is of a profile that the package does not have.
type UnknownError struct {
	Name  string
	Known []string
}

func (e *UnknownError) Error() string {
	if strings.ContainsRune(e.Name, '/') {
		return fmt.Sprintf("profile %q looks like a path; give a file with -f, and name one of the profiles: %s", e.Name,
			strings.Join(e.Known, ", "))
	}
	return fmt.Sprintf("profile %q is not in the install package, which has %s%s", e.Name, strings.Join(e.Known, ", "),
		nearest.Hint(e.Name, e.Known))
}

// Chart loads the chart in a directory of the package.
func (p *Package) Chart(dir string) (*chart.Chart, error) {
	var files []*archive.BufferedFile
	total := 0
	err := fs.WalkDir(p.fs, dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := readFile(p.fs, name)
		if err != nil {
			return err
		}
		if total += len(text); total > maxChartBytes || len(files) >= maxChartFiles {
			return fmt.Errorf("chart %s has more than %d bytes or %d files", dir, maxChartBytes, maxChartFiles)
		}
		inside := strings.TrimPrefix(name, dir+"/")
		files = append(files, &archive.BufferedFile{Name: inside, Data: bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("chart %s of the install package: %w", dir, err)
	}
	c, err := loader.LoadFiles(files)
	if err != nil {
		return nil, fmt.Errorf("chart %s of the install package: %w", dir, err)
	}
	return c, nil
}
