package oracle

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"fairlead.dev/tests/scenarios/objects"
)

// Scenarios are the objects of our scenarios, as they apply them.
func Scenarios(root string) ([]Object, error) {
	home := filepath.Join(root, "tests", "scenarios")
	texts, err := objects.Of(home, "cases", "examples")
	if err != nil {
		return nil, err
	}
	var out []Object
	for _, t := range texts {
		found, err := parse(filepath.Base(t.Scenario)+t.Step, t.YAML)
		if err != nil && !t.Refused { // text that is no YAML is what some scenarios expect to be refused
			return nil, err
		}
		for _, o := range found {
			o.Refused = t.Refused
			out = append(out, o)
		}
	}
	return out, nil
}

// Files are the objects of all YAML files below a directory of the repository.
func Files(root, dir string) ([]Object, error) {
	var out []Object
	err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		found, err := parse(name, string(text))
		out = append(out, found...)
		return err
	})
	return out, err
}

var fenced = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")

// Pages are the whole objects that the documentation shows.
func Pages(root string) ([]Object, error) {
	var out []Object
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if entry.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i, block := range fenced.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(block[1], "apiVersion:") {
				continue // a part of an object
			}
			found, err := parse(fmt.Sprintf("%s, block %d", filepath.Base(path), i+1), block[1])
			if err != nil {
				return err
			}
			out = append(out, found...)
		}
		return nil
	})
	return out, err
}

// distinct leaves out objects that another one equals but for its name, and those that istioctl does not judge.
func distinct(objects []Object) []Object {
	var out []Object
	seen := map[string]bool{}
	for _, o := range objects {
		if id := o.identity(); o.Judged() && !seen[id] {
			seen[id] = true
			out = append(out, o)
		}
	}
	return out
}
