// Package lists has the loops over lists that the standard library's package slices does not have.
package lists

import "slices"

// Map returns what f returns for each item of list, in order; nil if list is empty.
func Map[T, U any](list []T, f func(T) U) []U {
	if len(list) == 0 {
		return nil
	}
	out := make([]U, len(list))
	for i, item := range list {
		out[i] = f(item)
	}
	return out
}

// Filter returns the items that keep accepts, in order and in a list of their own; nil if there are none.
func Filter[T any](list []T, keep func(T) bool) []T {
	var out []T
	for _, item := range list {
		if keep(item) {
			out = append(out, item)
		}
	}
	return out
}

// All reports whether ok is true of every item.
func All[T any](list []T, ok func(T) bool) bool {
	return !slices.ContainsFunc(list, func(item T) bool { return !ok(item) })
}
