package memory

import (
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"path/filepath"
	"strings"

	"fairlead.dev/services/config-watcher/internal/object"
)

// Names in the store's directory beside those of kinds.
const (
	// journalName holds a write of several objects until all of their files are in place, so that it survives a kill
	// whole or not at all.
	journalName = "journal.json"
	// markName says that the directory was used as a store.
	markName = "store.json"
	// damagedDir keeps damaged files that were replaced since.
	damagedDir = "damaged"
	// clusterDir stands for "no namespace": no namespace can have this name.
	clusterDir = "_cluster"
)

// maxName is the longest name of a file that file systems take, in bytes (NAME_MAX).
const maxName = 255

// relPath is where an object is kept: <kind>.<group>/<namespace>/<name>.json. Every part is escaped, so no name leads
// out of the directory; one that is too long for a file keeps its beginning and ends with its hash.
func relPath(k object.Key) string {
	kind := k.Kind
	if k.Group != "" {
		kind += "." + k.Group
	}
	ns := escape(k.Namespace, "")
	if k.Namespace == "" {
		ns = clusterDir
	}
	return filepath.Join(escape(kind, ""), ns, escape(k.Name, ".json"))
}

// escape makes a file's name of a text and an ending. Only a shortened one holds "~".
func escape(text, ending string) string {
	name := strings.ReplaceAll(url.PathEscape(text), "~", "%7E")
	if len(name)+len(ending) > maxName {
		sum := sha256.Sum256([]byte(text))
		hash := "~" + hex.EncodeToString(sum[:])
		name = name[:maxName-len(ending)-len(hash)] + hash
	}
	return name + ending
}

// keyOf reads the key from a path as far as it is there: a shortened name is not. The path is not damaged with the
// file.
func keyOf(rel string) object.Key {
	var k object.Key
	parts := strings.Split(filepath.ToSlash(rel), "/")
	if len(parts) != 3 {
		return k
	}
	plain := func(s string) string {
		text, err := url.PathUnescape(s)
		if err != nil || strings.Contains(s, "~") {
			return ""
		}
		return text
	}
	k.Kind, k.Group, _ = strings.Cut(plain(parts[0]), ".")
	if parts[1] != clusterDir {
		k.Namespace = plain(parts[1])
	}
	k.Name = plain(strings.TrimSuffix(parts[2], ".json"))
	return k
}

func shortHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// savedDir is the store's place among the last good states: another --store-dir has another one.
func (s *Store) savedDir() string {
	dir := s.cfg.Dir
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	return filepath.Join(Name, shortHash(dir))
}

func (s *Store) savedPath(rel string) string { return filepath.Join(s.savedDir(), rel) }
