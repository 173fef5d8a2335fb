package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"fairlead.dev/services/node-agent/internal/cni/plugin"
)

// defaultVersion is the CNI version of a configuration that names none.
const defaultVersion = "0.3.1"

// list is a list of plugins as JSON; fields that are not known here are kept.
type list map[string]json.RawMessage

func parseList(text []byte) (list, []json.RawMessage, error) {
	var l list
	if err := json.Unmarshal(text, &l); err != nil {
		return nil, nil, err
	}
	if l == nil {
		return nil, nil, errors.New("want a list of plugins, not null")
	}
	var plugins []json.RawMessage
	raw, found := l["plugins"]
	if !found {
		return nil, nil, errors.New(`it has no "plugins"`)
	}
	if err := json.Unmarshal(raw, &plugins); err != nil {
		return nil, nil, fmt.Errorf("plugins: %w", err)
	}
	return l, plugins, nil
}

// typeOf is the type of a plugin's entry; "" for what is none.
func typeOf(entry json.RawMessage) string {
	var p struct{ Type string }
	if json.Unmarshal(entry, &p) != nil {
		return ""
	}
	return p.Type
}

// insert returns a list of plugins with c as the last one.
func insert(text []byte, c plugin.Config) ([]byte, error) {
	l, plugins, err := parseList(text)
	if err != nil {
		return nil, err
	}
	c.Type, c.Name, c.CNIVersion = plugin.Name, "", "" // the list's own hold
	entry, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	plugins = slices.DeleteFunc(plugins, func(p json.RawMessage) bool { return typeOf(p) == plugin.Name })
	return l.with(append(plugins, entry))
}

// without returns a list of plugins without ours, and whether it had it.
func without(text []byte) ([]byte, bool, error) {
	l, plugins, err := parseList(text)
	if err != nil {
		return nil, false, err
	}
	kept := slices.DeleteFunc(slices.Clone(plugins), func(p json.RawMessage) bool { return typeOf(p) == plugin.Name })
	if len(kept) == len(plugins) {
		return text, false, nil
	}
	text, err = l.with(kept)
	return text, true, err
}

func (l list) with(plugins []json.RawMessage) ([]byte, error) {
	var err error
	if l["plugins"], err = json.Marshal(plugins); err != nil {
		return nil, err
	}
	return json.MarshalIndent(l, "", "  ")
}

// listOf makes a list of the configuration of one plugin.
func listOf(text []byte) ([]byte, error) {
	var single map[string]json.RawMessage
	if err := json.Unmarshal(text, &single); err != nil {
		return nil, err
	}
	if single["type"] == nil {
		return nil, errors.New(`it has no "type"`)
	}
	l := list{"name": single["name"], "cniVersion": single["cniVersion"]}
	if l["cniVersion"] == nil {
		l["cniVersion"] = json.RawMessage(`"` + defaultVersion + `"`)
	}
	if l["name"] == nil {
		l["name"] = json.RawMessage(`"` + plugin.Name + `"`)
	}
	return l.with([]json.RawMessage{text})
}
