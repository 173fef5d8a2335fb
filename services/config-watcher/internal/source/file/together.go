package file

import (
	"strings"

	"fairlead.dev/services/config-watcher/internal/kinds"
	"fairlead.dev/services/config-watcher/internal/source"
)

// together divides the events of one scan into what is delivered together; location is "<file>:<line>" of an event's
// object. At most
// source.MaxTogether events stay one part. More are divided, but never those of one file; the files in which only
// endpoints have changed come first, because they need not wait for the others.
func together(events []source.Event, location func(source.Event) string) [][]source.Event {
	if len(events) <= source.MaxTogether {
		return [][]source.Event{events}
	}
	var files []string
	byFile := map[string][]source.Event{}
	for _, e := range events {
		at := location(e)
		name := at[:max(strings.LastIndexByte(at, ':'), 0)]
		if byFile[name] == nil {
			files = append(files, name)
		}
		byFile[name] = append(byFile[name], e)
	}
	var parts [][]source.Event
	add := func(endpoints bool) {
		var part []source.Event
		for _, name := range files {
			one := byFile[name]
			if onlyEndpoints(one) != endpoints {
				continue
			}
			if len(part) > 0 && len(part)+len(one) > source.MaxTogether {
				parts, part = append(parts, part), nil
			}
			part = append(part, one...)
		}
		if len(part) > 0 {
			parts = append(parts, part)
		}
	}
	add(true)
	add(false)
	return parts
}

func onlyEndpoints(events []source.Event) bool {
	for _, e := range events {
		if !kinds.IsEndpoint(e.Key) {
			return false
		}
	}
	return true
}
