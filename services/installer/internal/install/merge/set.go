package merge

import (
	"fmt"
	"strconv"
	"strings"

	"fairlead.dev/services/installer/internal/install/tree"
)

// maxSettings bounds how many settings one command line has.
const maxSettings = 10_000

// setting is one --set.
type setting struct {
	text string
	path tree.Path
}

// settings lays the settings on what the files say.
func (m *Merged) settings(texts []string) error {
	if len(texts) > maxSettings {
		return fmt.Errorf("%d settings are more than %d; write them into a file, and give it with -f", len(texts), maxSettings)
	}
	for _, text := range texts {
		path, value, err := ParseSetting(text)
		if err != nil {
			return err
		}
		if err := tree.Set(m.User, path, value); err != nil {
			return fmt.Errorf("--set %s: %w", text, err)
		}
		m.sets = append(m.sets, setting{text: text, path: path})
	}
	return nil
}

// ParseSetting reads one setting, path=value. A nil value removes the field.
func ParseSetting(text string) (tree.Path, any, error) {
	at := equals(text)
	if at < 0 {
		return nil, nil, fmt.Errorf("--set %s: it has no =; write path=value, such as values.global.hub=example.com/mesh", text)
	}
	path, err := tree.ParsePath(text[:at])
	if err != nil {
		return nil, nil, fmt.Errorf("--set %s: %w", text, err)
	}
	for _, step := range path {
		if step.Selector != nil && step.Selector.Bare {
			return nil, nil, fmt.Errorf("--set %s: %s selects nothing; write an index, [2], or a field and its value, [name:x]", text, step.Selector)
		}
	}
	if text[at+1:] != "null" && isText(path) {
		return path, text[at+1:], nil
	}
	return path, scalar(text[at+1:]), nil
}

// isText tells of fields whose values are text even if they look like numbers: 1.10 is a tag, and proxyMetadata has
// variables of an environment.
func isText(path tree.Path) bool {
	key, under := path[len(path)-1].Key, ""
	if len(path) > 1 {
		under = path[len(path)-2].Key
	}
	return key == "compatibilityVersion" || key == "tag" || under == "proxyMetadata"
}

// equals finds the first = outside of brackets.
func equals(text string) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '[':
			depth++
		case ']':
			depth--
		case '=':
			if depth <= 0 {
				return i
			}
		}
	}
	return strings.IndexByte(text, '=')
}

// scalar gives the text of a setting its type: null, a boolean, a number, or else a string.
func scalar(text string) any {
	if text == "null" {
		return nil
	}
	if n, err := strconv.Atoi(text); err == nil {
		return float64(n)
	}
	if f, err := strconv.ParseFloat(text, 64); err == nil && f == f && f-f == 0 {
		return f
	}
	if b, err := strconv.ParseBool(text); err == nil {
		return b
	}
	return text
}
