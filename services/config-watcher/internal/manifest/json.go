package manifest

import (
	"encoding/json"
	"slices"
	"strconv"
)

// AppendJSON appends what json.Marshal makes of a tree, with less garbage.
func AppendJSON(to []byte, tree any) ([]byte, error) {
	var err error
	switch t := tree.(type) {
	case map[string]any:
		if t == nil {
			break
		}
		var few [16]string
		keys := few[:0]
		for key := range t {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		to = append(to, '{')
		for i, key := range keys {
			if i > 0 {
				to = append(to, ',')
			}
			if to, err = appendText(to, key); err != nil {
				return nil, err
			}
			if to, err = AppendJSON(append(to, ':'), t[key]); err != nil {
				return nil, err
			}
		}
		return append(to, '}'), nil
	case []any:
		if t == nil {
			break
		}
		to = append(to, '[')
		for i, item := range t {
			if i > 0 {
				to = append(to, ',')
			}
			if to, err = AppendJSON(to, item); err != nil {
				return nil, err
			}
		}
		return append(to, ']'), nil
	case string:
		return appendText(to, t)
	case int64:
		return strconv.AppendInt(to, t, 10), nil
	}
	return appendAny(to, tree)
}

func appendText(to []byte, text string) ([]byte, error) {
	for i := range len(text) {
		switch c := text[i]; {
		case c < ' ', c > '~', c == '"', c == '\\', c == '<', c == '>', c == '&':
			return appendAny(to, text)
		}
	}
	return append(append(append(to, '"'), text...), '"'), nil
}

func appendAny(to []byte, v any) ([]byte, error) {
	js, err := json.Marshal(v)
	return append(to, js...), err
}
