package envoyadmin

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

const redacted = "[redacted]"

// JSON is a section as indented JSON without private keys. Envoy redacts keys in its dump; this does not rely on it.
func (d *Dump) JSON(s Section) ([]byte, error) {
	if s == VirtualHosts {
		return d.virtualHostsJSON()
	}
	raw, ok := d.sections[adminPrefix+string(s)]
	if !ok {
		return []byte("{}"), nil
	}
	text, err := Redacted(raw)
	if err != nil {
		return nil, fmt.Errorf("config dump, %s: %w", s, err)
	}
	return text, nil
}

// Redacted returns JSON text, indented, with private keys replaced.
func Redacted(text []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return nil, err
	}
	return json.MarshalIndent(redact(tree), "", "  ")
}

// AllJSON is the whole dump in Envoy's form, without private keys.
func (d *Dump) AllJSON() ([]byte, error) {
	configs := []json.RawMessage{}
	for _, name := range slices.Sorted(maps.Keys(d.sections)) {
		text, err := d.JSON(Section(strings.TrimPrefix(name, adminPrefix)))
		if err != nil {
			return nil, err
		}
		configs = append(configs, text)
	}
	return json.MarshalIndent(map[string]any{"configs": configs}, "", "  ")
}

// redact replaces the values that are, or may hold, a private key.
func redact(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, value := range v {
			switch k {
			case "private_key", "private_key_provider", "password", "session_ticket_keys", "generic_secret":
				v[k] = redacted
			default:
				v[k] = redact(value)
			}
		}
	case []any:
		for i := range v {
			v[i] = redact(v[i])
		}
	case string:
		if strings.Contains(v, "PRIVATE KEY-----") {
			return redacted
		}
	}
	return v
}
